"""The row: what one measured point leaves, one field per fact, null for what was not measured."""

import dataclasses
import types
import typing
from dataclasses import dataclass
from typing import Literal

from scaling.layout.axes import LayoutAxes
from scaling.layout.optional_parts import Router
from scaling.layout.shapes import Family
from scaling.study.point import StudyKind

Outcome = Literal[
    "ok", "oom", "timeout", "hang", "kernel_unavailable", "launch_failed", "node_failed", "error"
]


# Why no further step was measured: their number was fixed; the interval of the median was as narrow
# as asked; the most that were allowed had run; these, and the times never became steady.
Stopped = Literal["asked", "precise", "at_most", "not_steady"]
# Whether full steps ran, or short ones from which the full one is derived.
StepTimeKind = Literal["measured", "extended"]


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What is known of a point before it has run, its axes apart."""

    # which point
    study: str
    study_kind: StudyKind
    point_id: str
    repeat: int  # 0 is the first run of a layout

    # what was trained
    model: str
    family: Family
    num_layers: int
    num_encoder_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_hidden_size: int
    gated_mlp: bool
    vocab_size: int
    tied_embeddings: bool
    max_positions: int
    total_params: int
    # what only some models have; null in rows from before
    num_experts: int | None = None
    experts_per_token: int | None = None
    expert_ffn_hidden_size: int | None = None
    shared_experts: int | None = None
    dense_layers: int | None = None  # the first ones, without experts
    router: Router | None = None  # null without experts
    normalised_router: bool | None = None  # likewise
    query_rank: int | None = None  # latent attention's
    key_value_rank: int | None = None
    rotary_head_dim: int | None = None
    value_head_dim: int | None = None
    window: int | None = None  # tokens that a token of the windowed layers sees
    windowed_layers: int | None = None
    query_key_norm: bool | None = None
    attention_sinks: bool | None = None
    linear_biases: bool | None = None
    active_params: int | None = None  # that one token meets; all without experts

    # where
    cluster: str
    gpu: str  # the catalogue's name, as the study says it
    gpus_per_node: int
    peak_flop_per_s: float | None  # of one GPU at this precision; null where none is published

    layout: str  # for people: what stays the same when GPUs are added
    world_size: int
    dp: int
    global_batch_size: int
    gradient_accumulation_steps: int
    seq_length: int

    # how it was measured
    seed: int
    warmup_steps: int
    gradient_clipping: float = 0.0  # the norm above which gradients are scaled down; 0: never
    time_limit_s: float

    # what was counted
    tokens_per_step: int
    model_flops_per_token: int
    hardware_flops_per_token: int
    matmul_flops_per_token: int


@dataclass(frozen=True, kw_only=True)
class PointColumns(LayoutAxes, _Asked):
    """The columns of points.parquet; a row begins with the same."""


@dataclass(frozen=True, kw_only=True)
class Row(PointColumns):
    """One attempt to measure one point. A failure is an outcome, never a number.

    Units: seconds, bytes, joules, watts, FLOPs and FLOP/s; batch sizes count sequences. A row from
    before an axis existed was measured at its default.
    """

    attempt: int  # 1 is the first try of this point
    outcome: Outcome
    error_message: str | None
    clock: str | None  # perf_counter | cuda_event

    # what was measured
    step_times_s: list[float] | None  # every measured step, slowest rank, warm-up excluded
    step_time_s: float | None  # median
    step_time_low_s: float | None  # 95 % bootstrap interval of the median, of one run
    step_time_high_s: float | None
    # which of the two the point has; a row from before there was a choice was measured
    step_time_kind: StepTimeKind | None = None
    stopped: Stopped | None = None
    # short steps, in the order in which they ran: slowest rank's seconds, and micro-batches of each
    short_step_times_s: list[float] | None = None
    short_accumulations: list[int] | None = None
    extended_step_time_s: float | None = None  # the full step, derived from the short ones
    extended_low_s: float | None = None  # 80 % bootstrap interval, of one run
    extended_high_s: float | None = None
    step_fixed_s: float | None = None  # of the extended step: what its micro-batches do not add
    micro_batch_s: float | None = None  # and what each of them adds
    extension_is_linear: bool | None = None  # False: accumulations disagreed, so full steps ran
    losses: list[float] | None  # every step from the first, warm-up included
    grad_norms: list[float] | None  # likewise; null where the engine keeps none
    # per step, mean over ranks, from a profiler window after the timed steps
    compute_s: float | None
    comm_s: float | None
    exposed_comm_s: float | None
    idle_s: float | None
    all_reduce_s: float | None = None  # what comm_s is made of, by kind
    all_gather_s: float | None = None
    reduce_scatter_s: float | None = None
    all_to_all_s: float | None = None
    send_recv_s: float | None = None
    broadcast_s: float | None = None
    tp_comm_s: float | None = None  # and by axis
    cp_comm_s: float | None = None
    ep_comm_s: float | None = None  # all-to-alls among experts
    dp_comm_s: float | None = None
    pp_comm_s: float | None = None
    pipeline_bubble_s: float | None = None  # exposed communication between stages
    optimizer_s: float | None = None  # of compute, communication and idleness
    peak_memory_bytes: int | None  # largest over ranks, allocated
    peak_reserved_bytes: int | None
    # tokens of the fullest expert over the mean, over all steps, mean of a rank's layers; largest
    expert_imbalance: float | None = None
    memory_meter: str | None  # cuda_allocator | process_rss
    foreign_memory_bytes: int | None = None  # of a device, taken before its rank opened it; largest
    library_memory_bytes: int | None = None  # NCCL's, the CUDA context's, ...; largest over ranks
    energy_j: float | None  # per step, every device of the job counted once
    mean_power_w: float | None  # likewise
    clock_hz: float | None = None  # mean over the measured steps, of the slowest device
    throttled_share: float | None = None  # of the time, of the device that was held down most
    startup_s: float | None  # from starting the ranks to the first step
    load_average: float | None = None  # of the first host over the minute before the ranks start
    duration_s: float  # of the whole point, start-up and clean-up included

    # provenance
    git_commit: str | None
    python_version: str | None
    torch_version: str | None
    deepspeed_version: str | None  # where that engine trains; torch's is the version of torch
    flash_attn_version: str | None  # of the attention kernel's package, where it is in one
    liger_kernel_version: str | None = None  # where the layout calls it
    scaling_version: str
    gpu_name: str | None  # as the driver or /proc/cpuinfo spells it
    driver_version: str | None
    cuda_version: str | None
    nccl_version: str | None
    hosts: list[str]
    excluded_hosts: list[str] | None = None  # that Slurm left out as asked: slow, or seen before
    job_id: str | None  # the scheduler's
    started_at: str  # UTC, ISO 8601
    stack_fingerprint: str  # rows with different ones are never averaged


def fields_of(row_type: type) -> dict[str, tuple[str, bool]]:
    """Column -> (kind, nullable), kind one of str int float bool list[float] list[int] list[str].

    Arrow, SQL and the docs' table are derived from this and typed nowhere else.
    """
    hints = typing.get_type_hints(row_type)
    return {field.name: _kind(hints[field.name]) for field in dataclasses.fields(row_type)}


def _kind(hint: object) -> tuple[str, bool]:
    nullable = False
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
        nullable = True
    if typing.get_origin(hint) is Literal:
        hint = type(typing.get_args(hint)[0])
    if typing.get_origin(hint) is list:
        return f"list[{typing.get_args(hint)[0].__name__}]", nullable
    assert isinstance(hint, type)
    return hint.__name__, nullable
