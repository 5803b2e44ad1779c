"""What the ranks of a probe measured, as rows."""

import dataclasses
import datetime
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scaling.launch.ranks import Ended
from scaling.probe.bandwidth import bus_factor
from scaling.probe.plan import Group, ProbePlan, Task
from scaling.record.interval import median_interval
from scaling.record.probe_row import Probe, fields_asked
from scaling.record.rank_files import ProbeRecords

_FEWEST_HOSTS = 3  # of two that differ nobody can say which one is ill


def rows_of(plan: ProbePlan, ended: Ended, left: Mapping[int, ProbeRecords]) -> list[Probe]:
    """One row per task and host, pair of hosts, or kind of group across hosts.

    A task that no rank did is one row whose outcome says why.
    """
    by_task: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    for rank, of_rank in left.items():
        for record in of_rank.records:
            by_task.setdefault(record["task"], []).append((rank, record))
    started = datetime.datetime.fromtimestamp(ended.started_at, datetime.UTC)
    writer = _Writer(plan, left, started.isoformat(timespec="seconds"))
    rows: list[Probe] = []
    for index, task in enumerate(plan.tasks):
        records = by_task.get(index, [])
        if not records:
            rows.append(writer.row(task, **_not_done(plan, ended)))
        elif task.group is None:
            rows += writer.on_hosts(task, records)
        else:
            rows += writer.in_groups(task, task.group, [record for _, record in records])
    return with_slowdowns(rows)


def with_slowdowns(rows: Sequence[Probe]) -> list[Probe]:
    """Fill `slowdown` where three hosts or pairs of hosts or more did the same."""
    alike: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row.seconds is not None and row.host is not None:
            alike.setdefault(_task_of(row), []).append(row.seconds)
    done = []
    for row in rows:
        peers = alike.get(_task_of(row), [])
        if row.seconds is not None and row.host is not None and len(peers) >= _FEWEST_HOSTS:
            row = dataclasses.replace(row, slowdown=row.seconds / statistics.median(peers))
        done.append(row)
    return done


def _task_of(row: Probe) -> tuple[Any, ...]:
    return (row.cluster, row.kind, *(getattr(row, name) for name in fields_asked()))


def _not_done(plan: ProbePlan, ended: Ended) -> dict[str, Any]:
    if ended.verdict.outcome == "ok":
        message = f"the probe's time of {plan.time_limit_s:g} s was over before this one's turn"
        return {"outcome": "timeout", "error_message": message}
    return {"outcome": ended.verdict.outcome, "error_message": ended.verdict.message}


class _Writer:
    """Makes rows of one probe."""

    def __init__(self, plan: ProbePlan, left: Mapping[int, ProbeRecords], started_at: str) -> None:
        self._plan, self._started_at = plan, started_at
        self._hosts = {rank: of_rank.facts["host"] for rank, of_rank in left.items()}

    def row(self, task: Task, **columns: Any) -> Probe:
        """A row of this task; what is not `known` is null."""
        of_task = {f.name: getattr(task, f.name) for f in dataclasses.fields(Task)}
        group: Group | None = of_task.pop("group")
        values: dict[str, Any] = {
            **dict.fromkeys(field.name for field in dataclasses.fields(Probe)),
            "cluster": self._plan.cluster,
            "gpu": self._plan.gpu,
            "gpus_per_node": self._plan.gpus_per_node,
            "outcome": "ok",
            "started_at": self._started_at,
            **of_task,
        }
        if group is not None:
            members = group.members(self._plan.world_size)
            values |= {
                "group": group.name,
                "ranks": group.ranks,
                "stride": group.stride,
                "nodes": len({rank // self._plan.gpus_per_node for rank in members[0]}),
                "groups": len(members),
            }
        return Probe(**{**values, **columns})

    def on_hosts(self, task: Task, records: Iterable[tuple[int, dict[str, Any]]]) -> list[Probe]:
        """One row per host: its slowest device, or the first that failed."""
        by_host: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        for rank, record in sorted(records, key=lambda pair: pair[0]):
            by_host.setdefault(self._hosts[rank], []).append((rank, record))
        rows = []
        for host, here in by_host.items():
            failed = [(rank, record) for rank, record in here if "outcome" in record]
            if failed:
                rank, record = failed[0]
                columns = {"outcome": record["outcome"], "error_message": record["message"]}
            else:
                rank, record = max(here, key=lambda pair: statistics.median(pair[1]["samples"]))
                columns = self._times(task, record["samples"])
            device = rank % self._plan.gpus_per_node
            rows.append(self.row(task, host=host, device=device, **columns))
        return rows

    def in_groups(self, task: Task, group: Group, records: Sequence[dict[str, Any]]) -> list[Probe]:
        """Groups on one host or on one pair of hosts: a row for each; else one for all groups."""
        failed = [record for record in records if "outcome" in record]
        if failed:
            columns = {"outcome": failed[0]["outcome"], "error_message": failed[0]["message"]}
            return [self.row(task, **columns)]
        by_place: dict[tuple[str | None, str | None], list[dict[str, Any]]] = {}
        for record in records:
            by_place.setdefault(self._place(record["ranks"], group), []).append(record)
        rows = []
        for (host, peer_host), here in by_place.items():
            wrong = [record for record in here if record["wrong"]]
            where = {"host": host, "peer_host": peer_host}
            if wrong:
                ranks = ", ".join(map(str, wrong[0]["ranks"][:8]))
                message = f"{task.kind} among ranks {ranks}: what arrived is not what was sent"
                rows.append(self.row(task, **where, outcome="wrong", error_message=message))
                continue
            slowest = max(here, key=lambda record: statistics.median(record["samples"]))
            size = slowest["message_bytes"]
            columns = self._times(task, slowest["samples"], message_bytes=size)
            rows.append(self.row(task, **where, **columns))
        return rows

    def _place(self, ranks: Sequence[int], group: Group) -> tuple[str | None, str | None]:
        nodes = sorted({rank // self._plan.gpus_per_node for rank in ranks})
        hosts = [self._hosts.get(node * self._plan.gpus_per_node) for node in nodes]
        if len(hosts) == 1:
            return hosts[0], None
        return (hosts[0], hosts[1]) if group.name == "node_pair" else (None, None)

    def _times(
        self, task: Task, samples: Sequence[float], message_bytes: int | None = None
    ) -> dict[str, Any]:
        interval = median_interval(samples)
        seconds = interval.median
        columns: dict[str, Any] = {
            "runs": len(samples),
            "seconds": seconds,
            "seconds_low": interval.low,
            "seconds_high": interval.high,
        }
        if task.group is not None:
            assert message_bytes is not None
            rate = message_bytes / seconds
            factor = bus_factor(task.kind, task.group.ranks)  # type: ignore[arg-type]
            columns |= {
                "message_bytes": message_bytes,
                "algorithm_bytes_per_s": rate,
                "bus_bytes_per_s": factor * rate,
            }
        elif task.kind == "memory_copy":
            assert task.message_bytes is not None
            columns["copy_bytes_per_s"] = 2 * task.message_bytes / seconds
        else:
            columns["flop_per_s"] = flops_of(task) / seconds
        return columns


def flops_of(task: Task) -> int:
    """FLOPs of a gemm, or of causal attention forward and backward.

    A gemm multiplies and adds m * n * k times. Attention has two matmuls of 2 * s * s * d a head
    forward (scores, values) and five backward (scores again, and the gradients of values,
    probabilities, queries and keys), of which the causal half is computed (FlashAttention-2,
    arXiv 2307.08691, section 4.1, counts 3.5 forwards).
    """
    if task.kind == "gemm":
        return 2 * math.prod((task.m or 0, task.n or 0, task.k or 0))
    scores = (task.batch_size or 0) * (task.num_heads or 0) * (task.seq_length or 0) ** 2
    return 7 * 2 * scores * (task.head_dim or 0) // 2
