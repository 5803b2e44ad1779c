"""The probe's row: what one microbenchmark of a cluster left, null for what was not measured."""

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

from scaling.layout.axes import Attention, Precision
from scaling.record.row import Outcome

Collective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"
]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
ProbeKind = Literal["gemm", "attention", "memory_copy", Collective]
ProbeOutcome = Literal[Outcome, "wrong"]  # wrong: it ran and its result was not right


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One microbenchmark on one host, one pair of hosts, or one kind of group across hosts.

    Seconds, bytes, FLOP/s and bytes/s. Whatever ran on several devices or in several groups at once
    is as slow as the slowest of them.
    """

    cluster: str
    gpu: str
    gpus_per_node: int
    kind: ProbeKind
    outcome: ProbeOutcome
    error_message: str | None = None
    host: str | None = None  # null across hosts
    peer_host: str | None = None  # the other host of a pair
    device: int | None = None  # its number on the host: the slowest one, or the one that failed

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
    stride: int | None = None  # between neighbours of a group, in ranks
    nodes: int | None = None  # that one group spans
    groups: int | None = None  # that ran at once
    message_bytes: int | None = None  # nccl-tests' size: the whole tensor of a rank

    # what was measured
    runs: int | None = None
    seconds: float | None = None  # median of the runs
    seconds_low: float | None = None  # its 95 % bootstrap interval, of one probe
    seconds_high: float | None = None
    flop_per_s: float | None = None
    copy_bytes_per_s: float | None = None  # read and written
    algorithm_bytes_per_s: float | None = None  # nccl-tests' algbw
    bus_bytes_per_s: float | None = None  # nccl-tests' busbw
    slowdown: float | None = None  # seconds over the median of all hosts that did the same
    started_at: str  # UTC, ISO 8601


def fields_asked() -> tuple[str, ...]:
    """Columns that say what was measured, from `precision` to `message_bytes`."""
    names = [field.name for field in dataclasses.fields(Probe)]
    return tuple(names[names.index("precision") : names.index("message_bytes") + 1])
