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
    """A function that rehearses points, in one process that is started for the first of them.

    `say` hears what is being rehearsed and what fails. Without it only the cache is read.
    """
    left = MOST
    with contextlib.ExitStack() as process:
        rehearse = None

        def fullest_bytes(points: Sequence[Point]) -> Sequence[int | None]:
            return [_read(point) or _rehearse(point) for point in points]

        def _rehearse(point: Point) -> int | None:
            nonlocal rehearse, left
            if say is None or left < 0 or memory_refusal(point) is not None:
                return None
            left -= 1
            if left < 0:
                say(f"other layouts near the limit stay predicted: a command rehearses {MOST}")
                return None
            say(f"rehearsing {point.layout.world_size} GPUs, {point.layout.label}")
            try:
                rehearse = rehearse or process.enter_context(rehearsals(point))
                ranks = list(stage_ranks(point.layout).values())
                parts = memories_of(rehearse, point, ranks, shallow=True)
            except (RuntimeError, OSError) as error:
                say(f"not rehearsed: {error}")
                rehearse = None
                return None
            peak = max(part.peak_bytes for part in parts)
            with contextlib.suppress(OSError):  # a home that cannot be written to
                path = _file(point)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, json.dumps({"peak_bytes": peak}))
            return peak

        yield fullest_bytes


def _read(point: Point) -> int | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(_file(point).read_text(encoding="utf-8"))["peak_bytes"])
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
