"""What a dry run says: the jobs that Snakemake would start, the allocations they would share."""

import argparse
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from scaling.errors import InputError
from scaling.study.plan_file import Allocation

DRY_RUN = {"--dry-run", "--dryrun", "-n"}
QUIET = "rules"  # a job's inputs and outputs, which are paths without end, are left out
_MARGIN_MIN = 2  # of an allocation beside its points, as the executor asks for them


def quietly(options: Sequence[str]) -> list[str]:
    """Snakemake's options with the one that leaves out each job's files, unless one is chosen."""
    own = any(word.startswith("--quiet") or word == "-q" for word in options)
    return [*options, *([] if own else ["--quiet", QUIET])]


def allocations(
    points: Mapping[str, Allocation], missing: Collection[str], options: Sequence[str]
) -> list[str]:
    """The allocations that the missing points would share, a line for each kind.

    None where the points go to no scheduler. Points of equal requests share one, as far as the
    profile's `submitit-pack` and `submitit-pack-minutes` let them.

    Raises:
        InputError: the profile is not there, or is none.
    """
    settings = _settings(options)
    if settings["executor"] != "submitit":
        return []
    most, most_minutes = int(settings["pack"] or 1), settings["pack_minutes"]
    kinds: Counter[tuple[Allocation, int]] = Counter()
    for asked, count in Counter(_request(points[name]) for name in missing).items():
        size = max(1, most)
        if most_minutes is not None:
            within = (int(most_minutes) - _MARGIN_MIN) // asked.minutes
            size = max(1, min(size, within))
        full, rest = divmod(count, size)
        kinds[asked, size] += full
        kinds[asked, rest] += rest > 0
    listed = sorted(((n, *kind) for kind, n in kinds.items() if n), key=lambda one: _order(*one))
    lines = [
        f"  {n} x {size} points of {asked.nodes} nodes, {asked.ranks_per_node} ranks on each, "
        f"{size * asked.minutes + _MARGIN_MIN} min"
        for n, asked, size in listed
    ]
    return [f"{len(missing)} points in {sum(kinds.values())} allocations:", *lines]


def _request(point: Allocation) -> Allocation:
    """What is the same of points that may share an allocation."""
    return Allocation(
        world_size=point.nodes * point.ranks_per_node, nodes=point.nodes,
        ranks_per_node=point.ranks_per_node, minutes=point.minutes,
    )  # fmt: skip


def _order(_: int, asked: Allocation, size: int) -> tuple[int, int, int]:
    return asked.world_size, asked.minutes, -size


def _settings(options: Sequence[str]) -> dict[str, Any]:
    """Executor, pack and pack_minutes, as the profile says or the options instead of it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--executor")
    parser.add_argument("--submitit-pack", dest="pack", type=int)
    parser.add_argument("--submitit-pack-minutes", dest="pack_minutes", type=int)
    given, _ = parser.parse_known_args(list(options))
    profile: dict[str, Any] = {}
    if given.profile is not None:
        path = given.profile / "config.yaml"
        try:
            profile = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (OSError, yaml.YAMLError) as error:
            raise InputError(f"{path}: is no profile of Snakemake: {error}") from error
    return {
        "executor": given.executor or profile.get("executor"),
        "pack": given.pack or profile.get("submitit-pack"),
        "pack_minutes": given.pack_minutes or profile.get("submitit-pack-minutes"),
    }
