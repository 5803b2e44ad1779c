"""Run a probe: from its plan to its rows, whatever happens to its ranks."""

import dataclasses
import datetime
import json
import math
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling.launch.judge import Limits
from scaling.launch.not_measured import (
    file_errors_as_not_written,
    noting_signals,
)
from scaling.launch.point_files import read_probe_plan
from scaling.launch.ranks import FinishedRun, rank_files, run_ranks
from scaling.launch.start.environment import rank_environment
from scaling.launch.start.forked import start_ranks
from scaling.launch.start.starter import Launch, Starter
from scaling.probe.plan import ProbePlan, Task
from scaling.record.bootstrap import median_interval
from scaling.record.files import arrow_schema, table_of, write_table, write_text
from scaling.record.probe_row import Collective, Probe, fields_asked
from scaling.record.rank_files import ProbeRecords
from scaling.study.paths import hosts_beside, logs_beside
from scaling.study.time_limits import HANG_AFTER_S

RANK_COMMAND = (sys.executable, "-m", "scaling.probe")
STARTUP_LIMIT_S = 300.0  # imports on a shared file system, connections of thousands of ranks
_FEWEST_HOSTS = 3  # of two hosts that differ, nobody can tell which one is slow

Record = dict[str, Any]  # one rank's result of one task, with the rank
Place = tuple[str | None, str | None]  # a host, or two


def probe(
    plan_path: Path,
    out: Path,
    *,
    logs: Path | None = None,
    rank_command: Sequence[str] = RANK_COMMAND,
    start: Starter = start_ranks,
    hang_after_s: float = HANG_AFTER_S,
) -> list[Probe]:
    """Run a probe's ranks and write its rows, with hosts.json and the plan's digest beside them.

    `plan_path` is probe.json, `out` the Parquet file, `logs` by default <name>.logs/ beside it. For
    the other arguments see `launch.point.measure`.

    Raises:
        InputError: the plan's file is missing or invalid.
        KilledFromOutside: somebody ended the ranks or this process; nothing was written.
        NotWritten: a file could not be written.
    """
    plan = read_probe_plan(plan_path)
    out = out.absolute()
    logs = logs or logs_beside(out)
    limits = Limits(
        limit_s=plan.time_limit_s + STARTUP_LIMIT_S,
        hang_after_s=hang_after_s,
        start_hang_after_s=hang_after_s,
    )
    with file_errors_as_not_written(out), noting_signals(), rank_files(logs) as files:
        command = [*rank_command, str(files.write_task(plan.to_json())), str(files.directory)]
        launch = Launch(command, plan, rank_environment(plan, os.environ), logs)
        run = run_ranks(launch, files, start, limits)
        left = files.read(ProbeRecords)
        rows = probe_rows(plan, run, left)
        facts = {"asked": plan.digest, "hosts": host_facts(left)}
        write_text(hosts_beside(out), json.dumps(facts, indent=1) + "\n")
        write_table(out, table_of(rows, arrow_schema(Probe)))
    return rows


def host_facts(left: Mapping[int, ProbeRecords]) -> dict[str, dict[str, Any]]:
    """Facts by host, with a list of its devices."""
    hosts: dict[str, dict[str, Any]] = {}
    for rank in sorted(left):
        facts = dict(left[rank].facts)
        own = {name: facts.pop(name) for name in ("device", "gpu_name", "memory_bytes")}
        host = hosts.setdefault(facts.pop("host"), {"devices": []})
        host["devices"].append(own | {"rank": rank})
        facts.pop("local_rank")
        host |= facts
    return hosts


def probe_rows(plan: ProbePlan, run: FinishedRun, left: Mapping[int, ProbeRecords]) -> list[Probe]:
    """One row per task and host, pair of hosts, or group across hosts.

    A task that no rank did gives one row whose outcome says why, as does a group task that failed.
    """
    hosts = {rank: of_rank.facts["host"] for rank, of_rank in left.items()}
    by_task: dict[int, list[Record]] = {}
    for rank in sorted(left):
        for record in left[rank].records:
            by_task.setdefault(record["task"], []).append(record | {"rank": rank})
    started = datetime.datetime.fromtimestamp(run.started_at, datetime.UTC)
    rows: list[Probe] = []
    for index, task in enumerate(plan.tasks):
        facts = _planned_columns(plan, task) | {"started_at": started.isoformat(timespec="seconds")}
        records = by_task.get(index, [])
        if not records:
            skipped = {"outcome": run.verdict.outcome, "error_message": run.verdict.message}
            if run.verdict.outcome == "ok":
                said = (
                    f"the probe's time of {plan.time_limit_s:g} s was over before this one's turn"
                )
                skipped = {"outcome": "timeout", "error_message": said}
            rows.append(Probe(**facts | skipped))
            continue
        by_place: dict[Place, list[Record]] = {}
        failed = any("outcome" in record for record in records)
        for record in records:
            place = (None, None) if failed and task.group else _place(plan, task, hosts, record)
            by_place.setdefault(place, []).append(record)
        for (host, peer_host), records_there in by_place.items():
            outcome, record = _result_columns(task, records_there)
            device = None if task.group else record["rank"] % plan.gpus_per_node
            where = {"host": host, "peer_host": peer_host, "device": device}
            rows.append(Probe(**facts | where | outcome))
    return _with_slowdowns(rows)


def _with_slowdowns(rows: Sequence[Probe]) -> list[Probe]:
    """Fill `slowdown` where at least three hosts or pairs of hosts did the same task."""
    by_task: dict[tuple[Any, ...], dict[int, float]] = {}  # seconds by index of the row
    for index, row in enumerate(rows):
        if row.seconds is not None and row.host is not None:
            task = (row.cluster, row.kind, *(getattr(row, name) for name in fields_asked()))
            by_task.setdefault(task, {})[index] = row.seconds
    filled = list(rows)
    for peers in by_task.values():
        median = statistics.median(peers.values())
        for index, seconds in peers.items() if len(peers) >= _FEWEST_HOSTS else ():
            filled[index] = dataclasses.replace(rows[index], slowdown=seconds / median)
    return filled


def _planned_columns(plan: ProbePlan, task: Task) -> dict[str, Any]:
    names = ("cluster", "gpu", "gpus_per_node")
    facts = {name: getattr(plan, name) for name in names} | {"outcome": "ok"}
    facts |= {each.name: getattr(task, each.name) for each in dataclasses.fields(Task)}
    if (group := task.group) is None:
        return facts
    members = group.members(plan.world_size)
    return facts | {
        "group": group.name,
        "ranks": group.ranks,
        "stride": group.stride,
        "nodes": len({rank // plan.gpus_per_node for rank in members[0]}),
        "groups": len(members),
    }


def _place(plan: ProbePlan, task: Task, hosts: Mapping[int, str], record: Record) -> Place:
    """The host or pair of hosts of a record; neither for other groups across hosts."""
    if task.group is None:
        return hosts[record["rank"]], None
    nodes = sorted({rank // plan.gpus_per_node for rank in record["ranks"]})
    named = [hosts.get(node * plan.gpus_per_node) for node in nodes]
    if len(named) == 1:
        return named[0], None
    return (named[0], named[1]) if task.group.name == "node_pair" else (None, None)


def _result_columns(task: Task, records: Sequence[Record]) -> tuple[dict[str, Any], Record]:
    """The result columns of records taken at once, and the record they come from.

    That is the first record that failed, else the slowest.
    """
    for record in records:
        if "outcome" in record:
            return {"outcome": record["outcome"], "error_message": record["message"]}, record
    for record in records:
        if record.get("wrong"):
            ranks = ", ".join(map(str, record["ranks"][:8]))
            message = f"{task.kind} among ranks {ranks}: what arrived is not what was sent"
            return {"outcome": "wrong", "error_message": message}, record
    slowest = max(records, key=lambda record: statistics.median(record["samples"]))
    interval = median_interval(slowest["samples"])
    seconds = interval.median
    columns: dict[str, Any] = {
        "runs": len(slowest["samples"]),
        "seconds": seconds,
        "seconds_low": interval.low,
        "seconds_high": interval.high,
    }
    if task.group is not None:
        rate = slowest["message_bytes"] / seconds
        factor = bus_factor(task.kind, task.group.ranks)  # type: ignore[arg-type]
        columns |= {
            "message_bytes": slowest["message_bytes"],
            "algorithm_bytes_per_s": rate,
            "bus_bytes_per_s": factor * rate,
        }
    elif task.message_bytes is not None:
        passes = 7 if task.kind == "host_update" else 2  # AdamW: weight, gradient, two moments
        columns["copy_bytes_per_s"] = passes * task.message_bytes / seconds
    else:
        columns["flop_per_s"] = flops_of(task) / seconds
        columns |= {name: slowest.get(name) for name in ("clock_hz", "power_w")}
    return columns, slowest


def flops_of(task: Task) -> int:
    """FLOPs of a gemm, or of causal attention forward and backward.

    A gemm does 2 m n k. Attention has two matmuls of 2 s^2 d per head forward (scores, values) and
    five backward (scores again; gradients of values, probabilities, queries and keys). Causal
    attention computes half of them. FlashAttention-2 (arXiv 2307.08691, section 4.1) counts the
    same 3.5 forwards.
    """
    if task.kind == "gemm":
        return 2 * math.prod((task.m or 0, task.n or 0, task.k or 0))
    scores = (task.batch_size or 0) * (task.num_heads or 0) * (task.seq_length or 0) ** 2
    return 7 * 2 * scores * (task.head_dim or 0) // 2


def bus_factor(kind: Collective, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, a ratio, as in nccl-tests' doc/PERFORMANCE.md.

    Algorithm bandwidth is S / t, with S the bytes of the whole tensor of a rank. Bus bandwidth is
    what a link carried, comparable with the hardware for any collective and number of ranks n.
    A ring sends of the S bytes
        all_reduce                    every byte but its own part, twice           2 (n - 1) / n
        all_gather, reduce_scatter    every part but one                             (n - 1) / n
        all_to_all                    every part but the one it keeps                (n - 1) / n
        broadcast, send_recv          all of it once                                 1

    Raises:
        ValueError: a group of one rank sends nothing.
    """
    if ranks < 2:
        raise ValueError(f"a group of {ranks} rank has no bus")
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("broadcast", "send_recv"):
        return 1.0
    return (ranks - 1) / ranks
