"""What a dry run shows: the jobs Snakemake would start, and the allocations they would share."""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from scaling.errors import InputError, counted
from scaling.run.progress import Watcher
from scaling.study.plan_file import Allocation

QUIET = "rules"  # leaves out each job's inputs and outputs, which are long lists of paths
# The executor is a separate distribution, so it is run as a command; by `-m` Python would warn, as
# the package imports this module itself.
_PACKING = "from snakemake_executor_plugin_submitit.packing import main; main()"


def is_asked_for(options: Sequence[str]) -> bool:
    """Whether Snakemake's options ask for a dry run; `-np` is `-n -p`."""
    return any(re.match("(--dry-?run|-n[a-zA-Z]*)$", word) for word in options)


def without_job_files(options: Sequence[str]) -> list[str]:
    """Snakemake's options, with `--quiet rules` added unless they set `--quiet`."""
    is_set = any(word.startswith("--quiet") or word == "-q" for word in options)
    return [*options, *([] if is_set else ["--quiet", QUIET])]


def show(command: list[str], options: Sequence[str], watcher: Watcher) -> int:
    """Let snakemake show its jobs, then print what they would allocate; snakemake's exit code."""
    watcher.look()
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        missing = [point.point_id for point in watcher.missing()]
        wanted = {point.point_id: point.allocation for point in watcher.points}
        for line in describe_allocations(wanted, missing, options):
            print(line)  # noqa: T201 (the output of a dry run)
    return code


def describe_allocations(
    points: Mapping[str, Allocation], missing: Collection[str], options: Sequence[str]
) -> list[str]:
    """The allocations that the missing points would share, a line for each size.

    Empty where no scheduler is used. Points with the same number of nodes and ranks share an
    allocation, within the profile's `submitit-pack` and `submitit-pack-minutes`.

    Raises:
        InputError: the profile is missing or broken.
    """
    settings = _settings(options)
    if settings["executor"] != "submitit":
        return []
    wanted = [points[name] for name in sorted(missing)]
    jobs = [(point.nodes, point.ranks_per_node, point.minutes) for point in wanted]
    most, most_minutes = settings["submitit-pack"] or 1, settings["submitit-pack-minutes"]
    limits = {"most": most, "most_minutes": most_minutes}
    packed = subprocess.run(
        [sys.executable, "-c", _PACKING],
        input=json.dumps(limits | {"jobs": jobs}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    packs = json.loads(packed.stdout)
    sizes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for nodes, ranks, minutes, count in packs:
        sizes.setdefault((nodes, ranks), []).append((minutes, count))
    lines = []
    for (nodes, ranks), packs_of_size in sorted(sizes.items()):
        all_minutes, counts = zip(*packs_of_size, strict=True)
        allocated = counted(sum(counts), "point")
        lines.append(
            f"  {len(counts)} of {nodes} nodes, {ranks} ranks on each: {allocated}, "
            f"at most {max(counts)} in one, of {min(all_minutes)} to {max(all_minutes)} min, "
            f"at most {nodes * sum(all_minutes) / 60:,.1f} node-hours"
        )
    return [f"{counted(len(missing), 'point')} in {counted(len(packs), 'allocation')}:", *lines]


def _settings(options: Sequence[str]) -> dict[str, Any]:
    """Executor and packing, from the options or else from the profile."""
    kinds: dict[str, Any] = {"executor": str, "submitit-pack": int, "submitit-pack-minutes": int}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--profile", type=Path)
    for name, kind in kinds.items():
        parser.add_argument(f"--{name}", dest=name, type=kind)
    stated, _ = parser.parse_known_args(list(options))
    profile: dict[str, Any] = {}
    if stated.profile is not None:
        path = stated.profile / "config.yaml"
        try:
            profile = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except FileNotFoundError:
            profile = {}  # snakemake has found it elsewhere
        except (OSError, yaml.YAMLError) as error:
            raise InputError(f"{path}: is no profile of Snakemake: {error}") from error
    return {name: getattr(stated, name) or profile.get(name) for name in kinds}
