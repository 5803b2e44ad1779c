"""The row of one probe (a microbenchmark of a cluster): null for what was not measured."""

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

from scaling.layout.axes import Attention, Precision
from scaling.record.row import Outcome

Collective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"
]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
# host_update: AdamW on the host by all ranks at once, `message_bytes` of weights each
ProbeKind = Literal["gemm", "attention", "memory_copy", "host_update", Collective]
ProbeOutcome = Literal[Outcome, "wrong"]  # wrong: it ran and gave a wrong result


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One microbenchmark on one host, one pair of hosts, or one kind of group across hosts.

    Seconds, bytes, FLOP/s and bytes/s. The slowest of the devices or groups that ran at once
    counts.
    """

    cluster: str
    gpu: str
    gpus_per_node: int
    kind: ProbeKind
    outcome: ProbeOutcome
    error_message: str | None = None
    host: str | None = None  # null across hosts
    peer_host: str | None = None  # the other host of a pair
    device: int | None = None  # number on the host, of the slowest or of the one that failed

    # what was asked
    precision: Precision  # collectives send fp32
    m: int | None = None  # a gemm multiplies (m, k) by (k, n)
    n: int | None = None
    k: int | None = None
    attention: Attention | None = None  # causal, forward and backward
    batch_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    seq_length: int | None = None
    group: str | None = None  # node | world | node_pair, or a layout's: tp | cp | data | shard | pp
    ranks: int | None = None  # of one group
    stride: int | None = None  # distance between neighbours of a group, in ranks
    nodes: int | None = None  # spanned by one group
    groups: int | None = None  # running at once
    message_bytes: int | None = None  # size in nccl-tests: the whole tensor of a rank

    # what was measured
    runs: int | None = None
    seconds: float | None = None  # median of the runs
    seconds_low: float | None = None  # its 95 % bootstrap interval, this probe only
    seconds_high: float | None = None
    flop_per_s: float | None = None
    clock_hz: float | None = None  # of a GPU's multiprocessors after a second of large products
    power_w: float | None = None
    copy_bytes_per_s: float | None = None  # read and written, by a copy or an update
    algorithm_bytes_per_s: float | None = None  # nccl-tests' algbw
    bus_bytes_per_s: float | None = None  # nccl-tests' busbw
    slowdown: float | None = None  # seconds over the median of all hosts with the same task
    started_at: str  # UTC, ISO 8601


def fields_asked() -> tuple[str, ...]:
    """Columns that define the task, from `precision` to `message_bytes`."""
    names = [field.name for field in dataclasses.fields(Probe)]
    return tuple(names[names.index("precision") : names.index("message_bytes") + 1])
