"""What a job asks of the scheduler: a rule's resources as sbatch options, without asking."""

import difflib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# start of the worker, and the signal that Slurm may send up to a minute early
MARGIN_MIN = 2

_COUNTS = {
    "nodes": "nodes",
    "gpus_per_node": "gpus-per-node",
    "tasks_per_node": "ntasks-per-node",
    "cpus_per_task": "cpus-per-task",
}
_WORDS = {
    "gres": "gres",
    "slurm_partition": "partition",
    "slurm_account": "account",
    "slurm_qos": "qos",
    "slurm_constraint": "constraint",
    "slurm_reservation": "reservation",
}
_OTHERS = {"slurm_exclusive", "slurm_extra", "slurm_setup"}
# what the executor itself decides; anything else may stand in slurm_extra
_RESERVED = {
    "array", "comment", "error", "job-name", "no-requeue", "open-mode", "output", "parsable",
    "requeue", "signal", "time", "wait",
}  # fmt: skip


class RequestError(ValueError):
    """A resource that cannot be asked for; its text is a whole sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one allocation needs; jobs with equal requests may share one.

    `options` are sbatch options without their dashes (True: a flag), sorted; `setup` are shell
    lines that run before the worker; `srun_args` are handed to the jobs in `$SRUN_ARGS`;
    `runtime_min` is the time limit of one job, not of the allocation.
    """

    runtime_min: int
    gpus: int
    options: tuple[tuple[str, str | int | bool], ...]
    setup: tuple[str, ...]
    srun_args: str

    @property
    def key(self) -> str:
        """Equal for equal requests."""
        return json.dumps([self.runtime_min, self.options, self.setup, self.srun_args])

    def minutes(self, jobs: int) -> int:
        """Time limit of an allocation that runs so many jobs one after another."""
        return jobs * self.runtime_min + MARGIN_MIN


def request_of(rule: str, resources: Mapping[str, Any]) -> Request:
    """The request that a rule's resources make.

    Raises:
        RequestError: a resource is missing, misspelt, of the wrong kind, or not the rule's to set.
    """
    _refuse_unknown(rule, resources)
    runtime = _count(rule, resources, "runtime")
    if not runtime:
        raise RequestError(
            f"rule {rule}: resource runtime={resources.get('runtime')!r}: every job needs a time "
            "limit in minutes; set it in the rule or by --default-resources runtime=30"
        )
    options: dict[str, str | int | bool] = {"nodes": 1}
    for name, option in _COUNTS.items():
        if value := _count(rule, resources, name):
            options[option] = value
    gpus_per_node = _count(rule, resources, "gpus_per_node") or 0
    if gpus_per_node and "ntasks-per-node" not in options:
        options["ntasks-per-node"] = gpus_per_node
    for name, option in _WORDS.items():
        if resources.get(name):
            options[option] = str(resources[name])
    if gpus_per_node and "gres" in options:
        raise RequestError(f"rule {rule}: resources gpus_per_node and gres: give one of them")
    memory = _count(rule, resources, "mem_mb")
    if memory is not None:  # 0 is a value here: all memory of the node
        options["mem"] = f"{memory}M" if memory else 0
    exclusive = resources.get("slurm_exclusive")
    if exclusive:
        options["exclusive"] = exclusive if isinstance(exclusive, str) else True
    options |= _extra(rule, str(resources.get("slurm_extra") or ""))
    setup = str(resources.get("slurm_setup") or "")
    return Request(
        runtime_min=runtime,
        gpus=int(options["nodes"]) * gpus_per_node,
        options=tuple(sorted(options.items())),
        setup=tuple(line for line in setup.splitlines() if line.strip()),
        srun_args=str(resources.get("srun_args") or ""),
    )


def _refuse_unknown(rule: str, resources: Mapping[str, Any]) -> None:
    """Only names that are clearly meant for Slurm: any other resource is the rule's own."""
    known = {*_WORDS, *_OTHERS}
    for name in resources:
        if name.startswith("slurm_") and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(sorted(known))}"
            raise RequestError(f"rule {rule}: unknown resource {name}={resources[name]!r}: {hint}")


def _count(rule: str, resources: Mapping[str, Any], name: str) -> int | None:
    value = resources.get(name)
    if value is None:
        return None
    try:
        count = int(value)
    except (TypeError, ValueError):
        count = -1
    if count < 0:
        raise RequestError(f"rule {rule}: resource {name}={value!r}: give a whole number")
    return count


def _extra(rule: str, text: str) -> dict[str, str | int | bool]:
    options: dict[str, str | int | bool] = {}
    for word in shlex.split(text):
        option, _, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not option:
            raise RequestError(
                f"rule {rule}: resource slurm_extra={text!r}: write sbatch options as "
                f"--option=value or --flag, not {word!r}"
            )
        if option in _RESERVED:
            raise RequestError(
                f"rule {rule}: resource slurm_extra={text!r}: --{option} is set by the executor"
            )
        options[option] = value or True
    return options
