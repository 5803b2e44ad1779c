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

# Sources of the defaults are in docs/formulas.md, one line each.
TIME: tuple[Parameter, ...] = (
    _p("gemm_efficiency", 0.80, 0.40, 0.90, 0.10, "ratio", "of the sustained peak, a large GEMM"),
    _p("gemm_half_size", 60.0, 1.0, 600.0, 0.3, "elements", "M, N or K at half efficiency"),
    _p("flash1_efficiency", 0.30, 0.08, 0.60, 0.4, "ratio", "of peak, causal half counted once"),
    _p("flash2_efficiency", 0.50, 0.15, 0.80, 0.4, "ratio", "of peak, causal half counted once"),
    _p("score_efficiency", 0.35, 0.10, 0.80, 0.4, "ratio", "of peak, score matmuls without flash"),
    _p("math_passes", 22.0, 6.0, 60.0, 0.4, "passes", "over the s x s scores, torch softmax"),
    _p("fused_passes", 12.0, 4.0, 40.0, 0.4, "passes", "over the s x s scores, fused softmax"),
    _p("norm_passes_fused", 30.0, 4.0, 60.0, 0.4, "passes", "over (tokens, h) a layer"),
    _p("norm_passes", 160.0, 8.0, 260.0, 0.5, "passes", "the same without a fused norm"),
    _p("logit_passes", 8.0, 2.0, 40.0, 0.4, "passes", "over the fp32 logits"),
    _p("link_efficiency", 0.70, 0.20, 0.95, 0.3, "ratio", "bus bandwidth of a link in the node"),
    _p("tp_latency_s", 25e-6, 3e-6, 300e-6, 0.6, "s", "of a collective of 4 tp ranks on the GPU"),
    _p("tp_exposed", 1.0, 0.1, 1.0, 0.2, "ratio", "of tp traffic that no compute hides"),
    _p("tp_network_latency_s", 60e-6, 10e-6, 2e-3, 0.8, "s", "per rank and round over nodes, tp"),
    _p("network_efficiency", 0.70, 0.10, 1.0, 0.4, "ratio", "of the NICs, dp collectives"),
    _p("dp_exposed", 0.60, 0.02, 1.0, 0.5, "ratio", "of gradient traffic that nothing hides"),
    _p("dp_exposed_inside", 0.60, 0.02, 1.0, 0.5, "ratio", "the same of dp ranks within a node"),
    _p("zero3_exposed", 0.15, 0.01, 1.0, 0.7, "ratio", "of the shorter of compute, gathering"),
    _p("p2p_efficiency", 0.60, 0.02, 1.0, 0.7, "ratio", "of a GPU's share of the NICs"),
    _p("p2p_latency_s", 100e-6, 5e-6, 30e-3, 1.0, "s", "of a message to a stage on another node"),
    _p("p2p_efficiency_inside", 0.60, 0.02, 1.0, 0.7, "ratio", "of a link in the node"),
    _p("p2p_latency_inside_s", 100e-6, 5e-6, 30e-3, 1.0, "s", "of a message within a node"),
    _p("host_layer_s", 2.0e-3, 0.3e-3, 6e-3, 0.5, "s", "to launch a layer's kernels, fwd + bwd"),
    _p(
        "host_collective_s", 150e-6, 10e-6, 1.5e-3, 0.7, "s", "to launch a collective of 4 tp ranks"
    ),
    _p("host_softmax_s", 0.4e-3, 0.02e-3, 3e-3, 0.7, "s", "more for torch's softmax, a layer"),
    _p("host_transport_s", 1e-6, 1e-7, 2e-3, 3.0, "s", "per tp rank, lossy transport in a pipe"),
    _p("host_sharpness", 4.0, 1.5, 12.0, 0.4, "-", "12: host or GPU bounds all of a layer"),
    _p("expert_gemm_efficiency", 0.90, 0.4, 1.1, 0.2, "ratio", "of a large GEMM's, grouped ones"),
    _p("expert_half_size", 600.0, 10.0, 2000.0, 0.5, "elements", "gemm_half_size of grouped GEMMs"),
    _p("expert_passes", 8.0, 4.0, 40.0, 0.4, "passes", "over a token's k copies, permuting"),
    _p("host_waits_s", 0.5e-3, 0.02e-3, 10e-3, 0.7, "s", "a layer with experts waits for it"),
    _p("ep_exposed", 1.0, 0.02, 1.0, 0.3, "ratio", "of all-to-alls that nothing hides"),
    _p("step_overhead_s", 0.01, 1e-4, 0.5, 1.0, "s", "per step whatever the layout"),
    _p("stall_s", 0.003, 1e-4, 2.0, 1.0, "s", "per micro-batch when memory is nearly full"),
)

MEMORY: tuple[Parameter, ...] = (
    _p("buffers_bytes", 1.0e9, 0.2e9, 6e9, 0.5, "bytes", "workspaces and communication buffers"),
    _p("master_ratio", 1.0, 0.9, 1.33, 0.1, "ratio", "of the counted optimizer state"),
    _p("gradient_ratio", 1.0, 0.9, 2.0, 0.15, "ratio", "of counted weights and gradients"),
    _p("kept_replicated", 8.0, 4.0, 16.0, 0.3, "bytes", "per token, h: what tp does not shard"),
    _p("kept_unfused", 16.0, 4.0, 40.0, 0.5, "bytes", "per token, h: more without a fused norm"),
    _p("kept_attention", 14.0, 8.0, 28.0, 0.3, "bytes", "per token, h / tp: q, k, v, output"),
    _p("kept_mlp", 8.0, 5.0, 12.0, 0.3, "bytes", "per token, ffn / tp"),
    _p("kept_routed", 4.0, 1.0, 8.0, 0.3, "bytes", "per copy of a token, h: permuted, returned"),
    _p("kept_math", 5.0, 2.0, 12.0, 0.4, "bytes", "per score, torch softmax"),
    _p("kept_fused", 4.0, 2.0, 8.0, 0.4, "bytes", "per score, fused softmax"),
    _p("kept_gathered", 0.2, 0.1, 12.0, 1.0, "bytes", "per token, h under sequence_parallel"),
    _p("late_release", 0.4, 0.2, 24.0, 1.0, "bytes", "per token, h: side streams, GPU-bound"),
    _p("kept_logits", 10.0, 4.0, 28.0, 0.4, "bytes", "per logit"),
    _p("fragmentation", 1.03, 1.0, 1.25, 0.05, "ratio", "reserved / allocated when it is tight"),
    _p("recompute_layers", 1.0, 0.3, 2.5, 0.4, "layers", "alive while one is recomputed"),
)

PARAMETERS: dict[str, Parameter] = {parameter.name: parameter for parameter in (*TIME, *MEMORY)}


# Defaults over a lossy transport, from the 673 timed rows of the published sweep over EFA. Unlike
# with InfiniBand the host drives the transport, allocator retries and messages stall for about a
# second, and reduce-scatters and all-gathers reach half the bandwidth.
LOSSY_TRANSPORT: Mapping[str, float] = {
    "host_transport_s": 0.45e-3,
    "stall_s": 1.2,
    "network_efficiency": 0.4,  # of rings; fitted 0.37 to 0.38 whichever model was left out
}


def defaults_for(overrides: Mapping[str, float]) -> dict[str, float]:
    """Every parameter at its default, except for `overrides`."""
    values = {name: parameter.default for name, parameter in PARAMETERS.items()}
    assert set(overrides) <= set(values), set(overrides) - set(values)
    # facts about what software hides hold for both kinds of links
    values["dp_exposed_inside"] = overrides.get("dp_exposed", values["dp_exposed_inside"])
    values.update(overrides)
    return values
