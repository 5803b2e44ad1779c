"""Turn the resources of a rule into a request: options of sbatch. Pure."""

import dataclasses
import difflib
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...request import Request, RequestError

_COUNTS = {
    "nodes": "nodes",
    "gpus_per_node": "gpus-per-node",
    "tasks_per_node": "ntasks-per-node",
    "cpus_per_task": "cpus-per-task",
    "tasks": "ntasks",
    "cpus_per_gpu": "cpus-per-gpu",
    "tasks_per_gpu": "ntasks-per-gpu",
}
_WORDS = {
    "gres": "gres",
    "slurm_partition": "partition",
    "slurm_account": "account",
    "slurm_qos": "qos",
    "slurm_constraint": "constraint",
    "slurm_reservation": "reservation",
    "slurm_exclude": "exclude",
    "slurm_dependency": "dependency",
    "constraint": "constraint",
    "qos": "qos",
}
# Resources of other executors that cannot be asked for.
_INSTEAD = {
    "gpu_manufacturer": "use gpu_model or constraint",
    "clusters": "set SLURM_CLUSTERS for the whole run",
}
_OTHERS = {"slurm_exclusive", "slurm_extra", "slurm_setup"}
# Options that the executor itself sets; slurm_extra may have any other.
_RESERVED = {
    "array", "clusters", "comment", "error", "job-name", "open-mode", "output", "parsable",
    "requeue", "signal", "time", "wait",
}  # fmt: skip


def request_of(rule: str, resources: Mapping[str, Any], threads: int = 1) -> Request:
    """The request that a rule's resources and threads make.

    Threads are cores of a task, unless the rule states these, or tasks of a node.

    Raises:
        RequestError: a resource is missing, misspelt, of the wrong kind, or reserved.
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
    if threads > 1 and not options.keys() & {"cpus-per-task", "ntasks-per-node"}:
        options["cpus-per-task"] = threads
    gpus_per_node = _count(rule, resources, "gpus_per_node") or 0
    if gpus_per_node and "ntasks-per-node" not in options:
        options["ntasks-per-node"] = gpus_per_node
    if gpus := _gpus(rule, resources, int(options["nodes"])):
        gpus_per_node = options["gpus-per-node"] = gpus
    if model := resources.get("gpu_model"):
        options["gpus-per-node"] = f"{model}:{gpus_per_node}"
    for name, option in _WORDS.items():
        if resources.get(name):
            options[option] = str(resources[name])
    if gpus_per_node and "gres" in options:
        raise RequestError(f"rule {rule}: resources gpus_per_node and gres: give one of them")
    memory = _count(rule, resources, "mem_mb")
    if per_cpu := _count(rule, resources, "mem_mb_per_cpu"):
        options["mem-per-cpu"] = f"{per_cpu}M"
    elif memory is not None:  # 0 is a value here: all memory of the node
        options["mem"] = f"{memory}M" if memory else 0
    exclusive = resources.get("slurm_exclusive")
    if exclusive:
        options["exclusive"] = exclusive if isinstance(exclusive, str) else True
    extra = _extra(rule, str(resources.get("slurm_extra") or ""))
    if "exclude" in options and "exclude" in extra:  # the rule's hosts and the site's
        extra["exclude"] = f"{extra['exclude']},{options['exclude']}"
    options |= extra
    setup, srun_args = str(resources.get("slurm_setup") or ""), resources.get("srun_args")
    return Request(
        runtime_min=runtime,
        options=options,
        setup=tuple(line for line in setup.splitlines() if line.strip()),
        environment={"SRUN_ARGS": str(srun_args)} if srun_args else {},
        excluded=str(resources.get("slurm_exclude") or ""),
    )


def _gpus(rule: str, resources: Mapping[str, Any], nodes: int) -> int:
    """GPUs of a node for a rule that states those of the whole job, by Snakemake's names."""
    gpus = _count(rule, resources, "gpu") or _count(rule, resources, "gpus") or 0
    if gpus and (resources.get("gpus_per_node") or resources.get("gres")):
        raise RequestError(f"rule {rule}: resources gpu={gpus} and gpus_per_node or gres: give one")
    if gpus % nodes:
        raise RequestError(f"rule {rule}: resources gpu={gpus} and nodes={nodes} do not match")
    return gpus // nodes


def _refuse_unknown(rule: str, resources: Mapping[str, Any]) -> None:
    """Refuse unknown names beginning with slurm_, and what cannot be asked for.

    Any other resource is the rule's own.
    """
    for name, instead in _INSTEAD.items():
        if name in resources:
            raise RequestError(f"rule {rule}: resource {name}: {instead}")
    ours = {*_WORDS, *_OTHERS}
    for name in resources:
        if name.startswith("slurm_") and name not in ours:
            near = difflib.get_close_matches(name, ours, n=1)
            hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(sorted(ours))}"
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
    try:
        words = shlex.split(text)
    except ValueError as error:  # an open quotation mark
        raise RequestError(f"rule {rule}: resource slurm_extra={text!r}: {error}") from error
    for word in words:
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


def avoiding(request: Request, hosts: Sequence[str], nodes: Collection[str] = ()) -> Request:
    """The same request, excluding these hosts too.

    Hosts of the rule's own list that are not among `nodes` are left out: sbatch would refuse them.
    Without `nodes` all count.
    """
    options = dict(request.options)
    # names, and lists such as node[1-3,7]
    stated = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", str(options.pop("exclude", "")))
    gone = set(request.excluded.split(",")) - set(nodes) if nodes else set()
    if entries := [entry for entry in [*stated, *hosts] if entry not in gone]:
        options["exclude"] = ",".join(entries)
    return dataclasses.replace(request, options=options)
