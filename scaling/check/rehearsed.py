"""Peak memory of whole layouts by rehearsal, kept in the user's cache folder.

Each rehearsal is kept under a digest of all that its memory depends on: model, layout, rank, the
code that trains and rehearses, torch and the engine. Layouts that need the same rehearsals, such as
ones of ZeRO-0 on other numbers of GPUs, share them.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import scaling
from scaling.check.oracle import memories_of, rehearsals, rehearsed_parts, stage_ranks
from scaling.layout.engines import ENGINES
from scaling.predict.advise.rehearse import Rehearse
from scaling.record.files import write_text
from scaling.study.point import Point, stored_fields
from scaling.train.rehearsal.limits import memory_refusal

CACHE = Path(".cache") / "scaling" / "memory"  # in the user's home
MOST = 12  # layouts that one command rehearses, each for 4 to 15 s; the others stay predicted


@contextlib.contextmanager
def rehearser(say: Callable[[str], None] | None) -> Iterator[Rehearse[Point]]:
    """A function that rehearses points at once, by a process that the first of them starts.

    `say` hears what is being rehearsed and what fails. Without it only the cache is read.
    """
    left, known = MOST, dict[Path, dict[str, Any]]()
    with contextlib.ExitStack() as process:
        rehearse = None

        def remembered(asked: Sequence[tuple[Point, int, int]]) -> list[dict[str, Any]]:
            nonlocal rehearse
            files = [_file(point, rank) for point, rank, _ in asked]
            new = {path: one for path, one in zip(files, asked, strict=True) if path not in known}
            if new:
                rehearse = rehearse or process.enter_context(rehearsals(asked[0][0]))
                for path, memory in zip(new, rehearse([*new.values()]), strict=True):
                    known[path] = {**memory, "owners": []}
                    with contextlib.suppress(OSError):  # a home that cannot be written to
                        path.parent.mkdir(parents=True, exist_ok=True)
                        write_text(path, json.dumps(known[path]))
            return [known[path] for path in files]

        def fullest_bytes(points: Sequence[Point]) -> Sequence[int | None]:
            nonlocal left
            needed = {point: _needed(point) for point in dict.fromkeys(points)}
            for path in set().union(*needed.values()) - known.keys():
                if (memory := _read(path)) is not None:
                    known[path] = memory
            new = {(p.shape, p.layout): p for p, files in needed.items() if files - known.keys()}
            if say is not None and left >= 0:
                rehearse_all({p: needed[p] for p in [*new.values()][:left]}, say)
                left -= len(new)
                if left < 0:
                    say(f"other layouts near the limit stay predicted: a command rehearses {MOST}")
            told = {p for p, files in needed.items() if files and files <= known.keys()}
            return [_fullest(remembered, [p])[0] if p in told else None for p in points]

        def rehearse_all(needed: Mapping[Point, set[Path]], say: Callable[[str], None]) -> None:
            nonlocal rehearse
            said = {*known}
            for point, files in needed.items():
                if not said >= files:
                    say(f"rehearsing {point.layout.world_size} GPUs, {point.layout.label}")
                said |= files
            try:
                _fullest(remembered, [*needed])
            except (RuntimeError, OSError) as error:
                rehearse = None
                if len(needed) == 1:
                    say(f"not rehearsed: {error}")
                for point, files in needed.items() if len(needed) > 1 else ():
                    rehearse_all({point: files}, say)

        yield fullest_bytes


def _fullest(rehearse: Any, points: Sequence[Point]) -> list[int]:
    """Peak bytes of the fullest rank of each point."""
    asked = [(point, [*stage_ranks(point.layout).values()]) for point in points]
    found = memories_of(rehearse, asked, shallow=True)
    return [max(rank.peak_bytes for rank in ranks) for ranks in found]


def _needed(point: Point) -> set[Path]:
    """The files of all rehearsals that a point needs; none if it cannot be rehearsed."""
    if memory_refusal(point):
        return set()
    ranks = stage_ranks(point.layout).values()
    parts = (part for rank in ranks for part in rehearsed_parts(point, rank, shallow=True))
    return {_file(smaller, rank) for smaller, rank, _ in parts}


def _read(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        memory = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(memory, dict) and {"spans", "phases", "owners"} <= memory.keys():
            return memory
    return None


def _file(point: Point, rank: int) -> Path:
    stored = [stored_fields(point.shape), stored_fields(point.layout), point.gradient_clipping]
    text = json.dumps([*stored, rank, _code()], sort_keys=True)
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
