"""What a dry run says: the jobs that Snakemake would start, the allocations they would share."""

import argparse
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
    """The allocations that the missing points would share, a line for each size.

    None where the points go to no scheduler. Points of as many nodes and ranks share one, as far
    as the profile's `submitit-pack` and `submitit-pack-minutes` let them.

    Raises:
        InputError: the profile is not there, or is none.
    """
    settings = _settings(options)
    if settings["executor"] != "submitit":
        return []
    packs = _packs(
        [points[name] for name in sorted(missing)], settings["pack"] or 1, settings["pack_minutes"]
    )
    sizes: dict[tuple[int, int], list[list[Allocation]]] = {}
    for pack in packs:
        sizes.setdefault((pack[0].nodes, pack[0].ranks_per_node), []).append(pack)
    lines = []
    for (nodes, ranks), alike in sorted(sizes.items()):
        minutes = [sum(point.minutes for point in pack) + _MARGIN_MIN for pack in alike]
        count = sum(map(len, alike))
        lines.append(
            f"  {len(alike)} of {nodes} nodes, {ranks} ranks on each: {count} points, "
            f"at most {max(map(len, alike))} in one, of {min(minutes)} to {max(minutes)} min, "
            f"at most {nodes * sum(minutes) / 60:,.1f} node-hours"
        )
    return [f"{len(missing)} points in {len(packs)} allocations:", *lines]


def _packs(
    points: Sequence[Allocation], most: int, most_minutes: int | None
) -> list[list[Allocation]]:
    """Points of as many nodes and ranks together, in their order, as the executor packs them."""
    packs: dict[tuple[int, int], list[list[Allocation]]] = {}
    for point in points:
        alike = packs.setdefault((point.nodes, point.ranks_per_node), [[]])
        minutes = sum(other.minutes for other in alike[-1]) + point.minutes + _MARGIN_MIN
        full = len(alike[-1]) == most or (most_minutes is not None and minutes > most_minutes)
        if alike[-1] and full:
            alike.append([])
        alike[-1].append(point)
    return [pack for alike in packs.values() for pack in alike]


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
