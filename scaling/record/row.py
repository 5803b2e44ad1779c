"""The row that one measured point leaves: a field per fact, null for what was not measured."""

import dataclasses
import functools
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

# Why no further step was measured. asked: their number was fixed; precise: the interval of the
# median was as narrow as asked; at_most: the largest allowed number had run; not_steady: likewise,
# and the step times never became steady.
Stopped = Literal["asked", "precise", "at_most", "not_steady"]
# Whether full steps were measured, or short ones from which the full step is derived.
StepTimeKind = Literal["measured", "extended"]


@dataclass(frozen=True, kw_only=True)
class _PlannedColumns:
    """The columns of a point before it runs, except its choices on the axes."""

    # which point
    study: str
    study_kind: StudyKind
    point_id: str
    repeat: int  # counts the runs of a layout from 0

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
    # parts that only some models have; null in rows written before these columns existed
    num_experts: int | None = None
    experts_per_token: int | None = None
    expert_ffn_hidden_size: int | None = None
    shared_experts: int | None = None
    dense_layers: int | None = None  # the first layers, which have no experts
    router: Router | None = None  # null without experts
    normalised_router: bool | None = None  # likewise
    query_rank: int | None = None  # of latent attention
    key_value_rank: int | None = None
    rotary_head_dim: int | None = None
    value_head_dim: int | None = None
    window: int | None = None  # tokens that each token attends to in windowed layers
    windowed_layers: int | None = None
    query_key_norm: bool | None = None
    attention_sinks: bool | None = None
    linear_biases: bool | None = None
    whole_query_key_norm: bool | None = None
    query_key_value_biases: bool | None = None
    router_bias: bool | None = None
    active_params: int | None = None  # used for one token; total_params without experts

    # where
    cluster: str
    gpu: str  # name in the catalogue, as in the study
    gpus_per_node: int
    peak_flop_per_s: float | None  # of one GPU at this precision; null if none is published

    layout: str  # a label for people: the choices that stay the same when GPUs are added
    world_size: int
    dp: int
    global_batch_size: int
    gradient_accumulation_steps: int
    seq_length: int

    # how it was measured
    seed: int
    warmup_steps: int
    gradient_clipping: float = 0.0  # norm above which gradients are scaled down; 0: never
    time_limit_s: float

    # what was counted
    tokens_per_step: int
    model_flops_per_token: int
    hardware_flops_per_token: int
    matmul_flops_per_token: int


@dataclass(frozen=True, kw_only=True)
class PointColumns(LayoutAxes, _PlannedColumns):
    """The columns of points.parquet, with which a row begins too."""


@dataclass(frozen=True, kw_only=True)
class Row(PointColumns):
    """One attempt to measure one point. A failure is an outcome, never a number.

    Units: seconds, bytes, joules, watts, FLOPs and FLOP/s; batch sizes count sequences. A row
    written before an axis existed was measured at the axis's default.
    """

    attempt: int  # counts the tries of this point from 1
    outcome: Outcome
    error_message: str | None = None
    implied_by: str | None = None  # the point whose lack of memory rules this one out unstarted
    # of the job on a node, if it killed a rank: the point runs again once a study asks for more
    memory_limit_bytes: int | None = None
    clock: str | None = None  # perf_counter | cuda_event

    # what was measured
    step_times_s: list[float] | None = None  # of the slowest rank, every measured step, no warm-up
    step_time_s: float | None = None  # median of step_times_s
    step_time_low_s: float | None = None  # 95 % bootstrap interval of the median, this run only
    step_time_high_s: float | None = None
    # null in rows written before short steps existed, which were measured
    step_time_kind: StepTimeKind | None = None
    stopped: Stopped | None = None
    # short steps in the order they ran: seconds of the slowest rank, and their micro-batches
    short_step_times_s: list[float] | None = None
    short_accumulations: list[int] | None = None
    extended_step_time_s: float | None = None  # the full step, derived from the short ones
    extended_low_s: float | None = None  # 80 % bootstrap interval, this run only
    extended_high_s: float | None = None
    step_fixed_s: float | None = None  # of the extended step: its part without micro-batches
    micro_batch_s: float | None = None  # and what each micro-batch adds
    extension_is_linear: bool | None = None  # False: not on one line, so full steps ran too
    losses: list[float] | None = None  # of every step, warm-up included
    grad_norms: list[float] | None = None  # likewise; null if the engine does not report them
    # whether all replicas hold equal weights after the last step; null where none are whole
    replicas_agree: bool | None = None
    # seconds per step, mean over ranks, from a profiler window after the timed steps
    compute_s: float | None = None
    comm_s: float | None = None
    exposed_comm_s: float | None = None
    idle_s: float | None = None
    profiled_slowdown: float | None = None  # such a step over step_time_s
    all_reduce_s: float | None = None  # comm_s by kind of collective
    all_gather_s: float | None = None
    reduce_scatter_s: float | None = None
    all_to_all_s: float | None = None
    send_recv_s: float | None = None
    broadcast_s: float | None = None
    tp_comm_s: float | None = None  # comm_s by axis of parallelism
    cp_comm_s: float | None = None
    ep_comm_s: float | None = None  # all-to-alls among experts
    dp_comm_s: float | None = None
    pp_comm_s: float | None = None
    pipeline_bubble_s: float | None = None  # exposed communication between pipeline stages
    optimizer_s: float | None = None  # part of compute, communication and idle time
    peak_memory_bytes: int | None = None  # allocated, largest over ranks
    peak_reserved_bytes: int | None = None  # reserved by the allocator, largest over ranks
    # of torch's allocator within the measured steps, largest over ranks: freed all its blocks and
    # asked the driver again; ran out all the same
    num_alloc_retries: int | None = None
    num_ooms: int | None = None
    # tokens of the fullest expert over the mean of all experts, counted over all steps; mean over
    # the layers of a rank, largest over ranks
    expert_imbalance: float | None = None
    memory_meter: str | None = None  # cuda_allocator | process_rss
    # of a device, largest over ranks: in use before its rank opened it, and held after the steps by
    # NCCL, the CUDA context and other libraries
    foreign_memory_bytes: int | None = None
    library_memory_bytes: int | None = None
    energy_j: float | None = None  # per step, all devices of the job together
    mean_power_w: float | None = None  # all devices together
    clock_hz: float | None = None  # of the slowest device, mean over the measured steps
    throttled_share: float | None = None  # share of the time, of the device throttled most
    slowdown_share: float | None = None  # likewise by heat or hardware, without the power cap
    # of the processors that the ranks wanted in the measured steps, what other processes took; on
    # the host with the most
    others_share: float | None = None
    startup_s: float | None = None  # from starting the ranks to the first step
    load_average: float | None = None  # of the first host, in the minute before the ranks start
    threads_per_rank: int | None = None  # on a CPU
    duration_s: float  # of the whole point, with start-up and clean-up
    suspended_s: float | None = None  # not in duration_s: suspended from outside, as by `scontrol`

    # provenance
    git_commit: str | None = None
    python_version: str | None = None
    torch_version: str | None = None
    deepspeed_version: str | None = None  # null under the engine torch
    flash_attn_version: str | None = None  # of the package with the attention kernel
    liger_kernel_version: str | None = None  # null unless the layout uses its kernels
    scaling_version: str
    # as the driver or /proc/cpuinfo writes it; with the threads if several
    gpu_name: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    nccl_version: str | None = None
    hosts: list[str]
    excluded_hosts: list[str] | None = None  # that Slurm was told to avoid: slow, or used before
    job_id: str | None = None  # of the scheduler
    started_at: str  # UTC, ISO 8601
    # digest of versions, GPU and driver; rows with different ones are never averaged
    stack_fingerprint: str


@functools.cache
def fields_of(row_type: type) -> dict[str, tuple[str, bool]]:
    """Map each column to (kind, nullable).

    A kind is one of str, int, float, bool, list[float], list[int] and list[str]. The Arrow and SQL
    schemas are derived from this, so types are stated nowhere else.
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
