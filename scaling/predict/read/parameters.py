"""The calibrated parameters: meaning, default, bounds and prior width of each."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameter:
    """One calibrated number. Its prior is lognormal around `default`, `spread` wide (sigma of ln).

    The prior keeps it at `default` where rows say nothing.
    """

    name: str
    default: float
    low: float
    high: float
    spread: float
    unit: str
    meaning: str


_p = Parameter  # short for the tables below

TIME: tuple[Parameter, ...] = (
    _p("gemm_efficiency", 0.77, 0.40, 0.90, 0.10, "ratio", "of the sustained peak, a large GEMM"),
    _p("gemm_half_size", 60.0, 1.0, 600.0, 0.3, "elements", "M, N or K at half efficiency"),
    _p("flash2_efficiency", 0.50, 0.15, 0.80, 0.4, "ratio", "of peak, causal half counted once"),
    _p("score_passes", 12.0, 4.0, 60.0, 0.4, "passes", "over the s x s scores, fused softmax"),
    _p("norm_passes_fused", 30.0, 4.0, 60.0, 0.4, "passes", "over (tokens, h) a layer"),
    _p("norm_passes", 160.0, 8.0, 260.0, 0.5, "passes", "the same without a fused norm"),
    _p("link_efficiency", 0.70, 0.20, 0.95, 0.3, "ratio", "bus bandwidth of a link in the node"),
    _p("tp_exposed", 1.0, 0.1, 1.0, 0.2, "ratio", "of tp traffic that no compute hides"),
    _p("network_efficiency", 0.70, 0.10, 1.0, 0.4, "ratio", "of the NICs, dp collectives"),
    _p("dp_exposed", 0.60, 0.02, 1.0, 0.5, "ratio", "of gradient traffic that nothing hides"),
    _p("host_layer_s", 2.0e-3, 0.3e-3, 20e-3, 0.5, "s", "to launch a layer's kernels, fwd + bwd"),
    _p("host_collective_s", 150e-6, 10e-6, 1.5e-3, 0.7, "s", "to launch a tp collective of 4"),
    _p("host_transport_s", 1e-6, 1e-7, 2e-3, 3.0, "s", "per tp rank, lossy transport in a pipe"),
    _p("host_update", 1.0, 0.1, 10.0, 0.5, "ratio", "of the usual rate of Adam on a node's host"),
    _p("expert_half_size", 600.0, 10.0, 2000.0, 0.5, "elements", "gemm_half_size of grouped GEMMs"),
)

MEMORY: tuple[Parameter, ...] = (
    _p("buffers_bytes", 1.0e9, 0.2e9, 6e9, 0.5, "bytes", "workspaces and communication buffers"),
    _p("state_ratio", 1.0, 0.9, 1.5, 0.1, "ratio", "of counted weights, gradients, optimizer"),
    _p("kept_replicated", 8.0, 4.0, 24.0, 0.3, "bytes", "per token, h: what tp does not shard"),
    _p("kept_sharded", 1.0, 0.5, 2.0, 0.3, "ratio", "of what tp shards of a layer's activations"),
    _p("kept_scores", 1.0, 0.4, 2.5, 0.4, "ratio", "of what is kept of s x s scores"),
    _p("late_release", 0.4, 0.1, 24.0, 1.0, "bytes", "per token, h: side streams, GPU-bound"),
    _p("kept_logits", 10.0, 4.0, 28.0, 0.4, "bytes", "per logit"),
    _p("fragmentation", 1.03, 1.0, 1.25, 0.05, "ratio", "reserved / allocated when it is tight"),
)

PARAMETERS: dict[str, Parameter] = {parameter.name: parameter for parameter in (*TIME, *MEMORY)}

# Defaults over a lossy transport, from the published sweep over EFA on up to 64 GPUs. Unlike with
# InfiniBand the host drives the transport, and reduce-scatters and all-gathers reach half the
# bandwidth.
LOSSY_TRANSPORT: Mapping[str, float] = {"host_transport_s": 0.45e-3, "network_efficiency": 0.4}

# Odds that a pipeline over nodes stalls over a lossy transport (cost/risk.py): centre and standard
# deviation before any row is seen. On eight nodes 10 of 180 crossing pipelines of the published
# sweep stalled, on two and four 2 of 67 and 2 of 117. Without ZeRO, with dp > 1 and more than
# eight micro-batches 3 of 10 on two nodes, 13 of 18 on four and 24 of 25 on eight.
STALL_ODDS: Mapping[str, tuple[float, float]] = {
    "stall_logit": (-2.8, 0.7),  # on eight nodes
    "stall_logit_per_doubling": (0.8, 0.5),  # of the nodes
    "stall_logit_without_zero": (6.0, 2.0),  # more on eight nodes, and a fifth of it per doubling
}


def defaults_for(overrides: Mapping[str, float]) -> dict[str, float]:
    """Every parameter at its default, except for `overrides`."""
    values = {name: parameter.default for name, parameter in PARAMETERS.items()}
    values |= {name: centre for name, (centre, _) in STALL_ODDS.items()}
    assert set(overrides) <= set(values), set(overrides) - set(values)
    return {**values, **overrides}
