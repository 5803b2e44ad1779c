"""Peak memory of whole layouts by rehearsal, kept in the user's cache folder.

A layout is kept under a digest of all that its memory depends on: model, layout, the code that
trains and rehearses, torch and the engine.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import scaling
from scaling.check.oracle import memories_of, rehearsals, stage_ranks
from scaling.layout.engines import ENGINES
from scaling.predict.advise.rehearse import Rehearse
from scaling.record.files import write_text
from scaling.study.ids import stored_fields
from scaling.study.point import Point
from scaling.train.rehearsal.limits import memory_refusal

CACHE = Path(".cache") / "scaling" / "memory"  # in the user's home
MOST = 12  # layouts that one command rehearses, each for 4 to 15 s; the others stay predicted


@contextlib.contextmanager
def rehearser(say: Callable[[str], None] | None) -> Iterator[Rehearse[Point]]:
    """A function that rehearses points at once, by a process that the first of them starts.

    `say` hears what is being rehearsed and what fails. Without it only the cache is read.
    """
    left, counted = MOST, dict[Path, int]()
    with contextlib.ExitStack() as process:
        rehearse = None

        def fullest_bytes(points: Sequence[Point]) -> Sequence[int | None]:
            nonlocal left
            files = [_file(point) for point in points]
            for path in files:
                if path not in counted and (size := _read(path)) is not None:
                    counted[path] = size
            new = dict(zip(files, points, strict=True))
            able = [p for p, one in new.items() if p not in counted and not memory_refusal(one)]
            if say is not None and left >= 0:
                if able[:left]:
                    rehearse_all({path: new[path] for path in able[:left]})
                left -= len(able)
                if left < 0:
                    say(f"other layouts near the limit stay predicted: a command rehearses {MOST}")
            return [counted.get(path) for path in files]

        def rehearse_all(points: dict[Path, Point]) -> None:
            nonlocal rehearse
            assert say is not None
            for point in points.values():
                say(f"rehearsing {point.layout.world_size} GPUs, {point.layout.label}")
            asked = [(one, [*stage_ranks(one.layout).values()]) for one in points.values()]
            try:
                rehearse = rehearse or process.enter_context(rehearsals(asked[0][0]))
                found = memories_of(rehearse, asked, shallow=True)
            except (RuntimeError, OSError) as error:
                rehearse = None
                if len(points) == 1:
                    say(f"not rehearsed: {error}")
                for path, point in points.items() if len(points) > 1 else ():
                    rehearse_all({path: point})
                return
            for path, ranks in zip(points, found, strict=True):
                counted[path] = max(one.peak_bytes for one in ranks)
                with contextlib.suppress(OSError):  # a home that cannot be written to
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_text(path, json.dumps({"peak_bytes": counted[path]}))

        yield fullest_bytes


def _read(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(path.read_text(encoding="utf-8"))["peak_bytes"])
    return None


def _file(point: Point) -> Path:
    depends_on = [stored_fields(point.shape), stored_fields(point.layout), point.gradient_clipping]
    text = json.dumps([*depends_on, _code()], sort_keys=True)
    return Path.home() / CACHE / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


@functools.cache
def _code() -> list[str]:
    """Digest of the training code, and the versions of what it runs on."""
    digest, package = hashlib.sha256(), Path(scaling.__file__).parent
    for path in sorted([*(package / "train").rglob("*.py"), package / "check" / "oracle.py"]):
        digest.update(path.read_bytes())
    versions = []
    for name in ("torch", *ENGINES):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(importlib.metadata.version(name))
    return [digest.hexdigest(), *versions]
