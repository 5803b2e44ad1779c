"""Find hosts that are slower than their peers at the same work, a sign of faulty hardware."""

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from operator import attrgetter

import duckdb
import pyarrow as pa

from scaling.record.probe_row import Probe, ProbeKind, fields_asked

# Healthy GPUs of one kind differ too: power limits and silicon spread SGEMM by 8 % on average and
# by 22 % at most over five clusters (Sinha et al., Not All GPUs Are Created Equal, SC 2022). This
# does not explain a whole node that is 1.2 x slower than the median of its peers.
SLOW_FROM = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowHost:
    """A host and the kind of work at which it is slow; `slowdown` is 1 for the median host."""

    host: str
    kind: ProbeKind
    slowdown: float
    probes: int  # compared probes of this kind


def slow_hosts(rows: Iterable[Probe]) -> list[SlowHost]:
    """The hosts whose median slowdown at a kind of work is at least `SLOW_FROM`, worst first.

    The median is over the sizes of a kind, so that a single disturbed probe has no effect. For
    messages between two hosts, each host gets its best pair, because a healthy host is slow only
    beside a slow one. Rows without a `slowdown` (fewer than three hosts did the same) are skipped.
    """
    asked = attrgetter(*fields_asked())
    by_task: dict[tuple[str, ProbeKind, tuple[object, ...]], list[float]] = {}
    for row in rows:
        if row.slowdown is None:
            continue
        task = asked(row)
        for host in (row.host, row.peer_host):
            if host is not None:
                by_task.setdefault((host, row.kind, task), []).append(row.slowdown)
    by_kind: dict[tuple[str, ProbeKind], list[float]] = {}
    for (host, kind, _), slowdowns in by_task.items():
        by_kind.setdefault((host, kind), []).append(min(slowdowns))
    slow = [
        SlowHost(host=host, kind=kind, slowdown=median, probes=len(slowdowns))
        for (host, kind), slowdowns in by_kind.items()
        if (median := statistics.median(slowdowns)) >= SLOW_FROM
    ]
    return sorted(slow, key=lambda one: -one.slowdown)


SCHEMA = pa.schema(
    [
        ("cluster", pa.string()), ("host", pa.string()), ("kind", pa.string()),
        ("slowdown", pa.float64()), ("probes", pa.int64()), ("slow_from", pa.float64()),
    ]
)  # fmt: skip


def slow_host_table(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per cluster, host and kind of work at which the host is slow."""
    rows = connection.execute("from compared_probes")
    names = [column[0] for column in rows.description]
    by_cluster: dict[str, list[Probe]] = {}
    for record in rows.fetchall():
        probe = Probe(**dict(zip(names, record, strict=True)))
        by_cluster.setdefault(probe.cluster, []).append(probe)
    records = [
        {"cluster": cluster, "slow_from": SLOW_FROM, **asdict(slow)}
        for cluster, probes in sorted(by_cluster.items())
        for slow in slow_hosts(probes)
    ]
    return pa.Table.from_pylist(records, schema=SCHEMA)
