"""The columns of the tables that the page holds or its sentences read, and words of tooltips."""

from scaling.layout.axes import AXES

_LAYOUT = (*AXES, "dp", "gradient_accumulation_steps")
_RATES = (
    "tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "tokens_per_s_per_gpu", "mfu", "hfu",
    "model_flop_per_s_per_gpu", "step_time_s", "step_time_low_s", "step_time_high_s",
    "peak_memory_bytes",
)  # fmt: skip

# The page holds each of these tables once, for its charts, tables, sentences and downloads.
COLUMNS: dict[str, tuple[str, ...]] = {
    "settings": (
        "setting_id", "model", "cluster", "study_kind", "seq_length", "kept_batch_size",
        "kept_choices", "gpu",
        "gpus_per_node", "vendor", "gpu_memory_bytes", "gpu_tdp_w", "usd_per_gpu_hour",
        "total_params", "num_layers", "hidden_size",
    ),
    "progress": (
        "setting_id", "points", "ok", "failed", "waiting", "predicted", "refusals", "skipped",
    ),
    "outcomes": ("setting_id", "world_size", "outcome", "points"),
    "noise": (
        "setting_id", "series", "layouts", "interval_half_width", "repeated_layouts",
        "repeat_half_spread", "never_ran",
    ),
    "statistics": (
        "setting_id", "series", "outcome", "world_size", *_LAYOUT, "layout_name", "repeat",
        "attempt", *_RATES, "step_time_p95_s",
        "energy_j", "mean_power_w", "exposed_comm_s", "startup_s",
        "duration_s", "error_message", "stack_fingerprint", "point_id", "predicted_outcome",
        "predicted_tokens_per_s", "predicted_step_time_s", "predicted_memory_bytes",
    ),
    "best": (
        "setting_id", "series", "world_size", "layout_name", "layout", "label", "slot", *_RATES,
        "tokens_per_step", "margin", "advised_layout_name", "advised_row_name",
        "predicted_own_sigma", "predicted_size_sigma", "ideal_tokens_per_s", "speed_up",
        "efficiency", "runner_up_layout_name", "runner_up_tokens_per_s",
        "runner_up_stack_fingerprint", "tied", "tied_layouts", "slowest_share", "runs",
        "predicted_memory_bytes", "energy_j", "tokens_per_joule", "power_per_gpu_w",
        "stack_fingerprint",
    ),
    "contenders": (
        "setting_id", "series", "world_size", "position", "place", "layout_name", "slot", "outcome",
        *_RATES, "predicted_memory_bytes", "zero_stage", "share_of_best", "within_noise", "runs",
        "ok_runs", "stack_fingerprint",
    ),
    "returns": (
        "setting_id", "series", "from_world_size", "to_world_size", "from_layout", "to_layout",
        "same_stack", "marginal_tokens_per_s", "interval_from", "step_return",
        "step_return_low", "step_return_high", "returned", "pays", "per_watt", "per_watt_low",
        "per_watt_high", "yardstick_per_watt", "watt_from",
    ),
    "knees": (
        "setting_id", "series", "knee_share", "knee_world_size", "beyond_data", "returned",
    ),
    "fixed_layout": (
        "setting_id", "series", "world_size", "layout_name", "tokens_per_s",
        "tokens_per_s_per_gpu", "share_of_best", "efficiency",
    ),
    "laws": (
        "setting_id", "series", "law", "chosen", "sizes", "held_out", "held_out_error",
        "fit_error", "leaves_data_at", "peak_world_size", "t1", "t1_low", "t1_high", "serial",
        "serial_low", "serial_high", "coherency", "coherency_low", "coherency_high",
        "communication", "communication_low", "communication_high",
    ),
    "costs": (
        "setting_id", "series", "world_size", "layout_name", "slot", "hours_per_token",
        "hours_per_token_low", "hours_per_token_high", "gpu_hours_per_token",
        "gpu_hours_per_token_low", "gpu_hours_per_token_high", "joules_per_token", "joules_from",
        "usd_per_token", "on_front", "cheapest_front",
    ),
    "effects": (
        "setting_id", "series", "factor", "name", "pairs", "mean_ratio", "lowest", "highest",
        "ratio_at_smallest", "ratio_at_largest", "near_pairs", "near_ratio", "near_low",
        "near_high", "memory_pairs", "memory_ratio", "less_memory", "shown",
    ),
    "memory_parts": (
        "setting_id", "world_size", "layout_name", "place", "outcome", "series", "part_order",
        "part", "bytes", "from_bytes", "to_bytes", "total_bytes", "peak_phase",
        "peak_memory_bytes", "capacity_bytes",
    ),
    "time_split": (
        "setting_id", "world_size", "layout_name", "series", "part_order", "part", "seconds",
        "profiled_s", "share_from", "share_to", "hidden_share",
    ),
    "collectives": (
        "cluster", "kind", "ranks", "stride", "nodes", "at_once", "message_bytes", "probes",
        "seconds", "bus_bytes_per_s", "bus_low", "bus_high",
    ),
    "slow_hosts": ("cluster", "host", "kind", "slowdown", "probes", "slow_from"),
    "engines": (
        "setting_id", "series", "world_size", "from_engine", "to_engine", "layout_name",
        "from_outcome", "to_outcome", "from_tokens_per_s", "to_tokens_per_s", "ratio",
        "ratio_low", "ratio_high", "reason",
    ),
    "refused": (
        "setting_id", "world_size", *AXES, "reason",
    ),
    "provenance": (
        "stack_fingerprint", "measurements", "gpu_name", "git_commit", "scaling_version",
        "python_version", "torch_version", "deepspeed_version", "flash_attn_version",
        "liger_kernel_version", "driver_version", "cuda_version", "nccl_version", "clock",
        "memory_meter", "hosts", "seeds", "first_started_at", "last_started_at",
    ),
    "busy": ("cluster", "own_threads", "rows_told", "busy", "highest_load_average"),
    "left_out": ("reason", "rows_left_out"),
    "losses": (
        "point_id", "setting_id", "world_size", "layout", "layouts", "differs_in", "at_step", "gap",
        "bound",
    ),
}  # fmt: skip

# Tables that only sentences are made from; the page does not hold them.
SENTENCE_COLUMNS: dict[str, tuple[str, ...]] = {
    "accuracy": (
        "setting_id", "compared", "near", "median_error", "judged", "told_right", "predicted_from",
        "published", "unstated",
    ),
    "advised": ("setting_id", "series", "world_size", "layout", "layout_name"),
    "decision": (
        "setting_id", "series", "layout", "layout_name", "slot", "role", "place", "world_size",
        "outcome", "share_of_best", "share_low", "share_high", "within_noise", "advised", *AXES,
    ),
}  # fmt: skip

# Of a column, or a value that a chart computes: its words in tooltips, and its number format (None:
# text; empty: the number as it is).
TOOLTIPS: dict[str, tuple[str, str | None]] = {
    "world_size": ("{GPUs}", "d"), "layout_name": ("layout", None),
    "advised_layout_name": ("advised", None), "series": ("value is", None),
    "outcome": ("outcome", None), "tokens_per_s": ("tokens/s", ",.4~s"),
    "tokens_per_s_low": ("{interval} from", ",.4~s"),
    "tokens_per_s_high": ("{interval} to", ",.4~s"),
    "tokens_per_s_per_gpu": ("tokens/s per {GPU}", ",.4~s"),
    "efficiency": ("share of ideal", ".1%"), "share_of_best": ("of the fastest", ".1%"),
    "mfu": ("MFU", ".1%"), "runner_up_layout_name": ("runner-up", None),
    "step_time_s": ("seconds per step", ".4~g"), "memory": ("GiB", ".3~r"),
    "memory_is": ("memory is", None), "tried": ("layouts tried", "d"),
    "failed": ("of these failed", "d"), "text": ("best of the cell", None),
    "status": ("outcome", None), "stack_fingerprint": ("software stack", None),
    # returns
    "from_world_size": ("from {GPUs}", ""), "to_world_size": ("to {GPUs}", ""),
    "from_layout": ("layout before", None), "to_layout": ("layout there", None),
    "step_return": ("return", ".2f"), "step_return_low": ("{interval} from", ".2f"),
    "step_return_high": ("{interval} to", ".2f"), "elasticity": ("elasticity", ".2f"),
    "marginal_tokens_per_s": ("tokens/s per added {GPU}", ",.4~s"),
    "per_watt": ("tokens/s per added watt", ",.4~s"),
    "per_watt_low": ("{interval} from", ",.4~s"), "per_watt_high": ("{interval} to", ",.4~s"),
    # parts of a step and of the memory
    "part": ("part", None), "seconds": ("seconds", ".4~g"), "share": ("of the step", ".1%"),
    "hidden_share": ("hidden behind compute", ".0%"), "took": ("ms per step", ".4~g"),
    "size": ("predicted GiB", ".3~r"), "total": ("predicted total GiB", ".3~r"),
    "peak": ("measured peak GiB", ".3~r"), "peak_phase": ("fullest phase of a step", None),
    # effects and interactions
    "name": ("choice", None), "near_pairs": ("matched pairs near the fastest", ""),
    "near_ratio": ("mean ratio of those", ".3f"), "near_low": ("95 % from", ".3f"),
    "near_high": ("95 % to", ".3f"), "pairs": ("all matched pairs", ""),
    "mean_ratio": ("mean ratio of all", ".3f"), "lowest": ("lowest", ".3f"),
    "highest": ("highest", ".3f"), "ratio_at_smallest": ("ratio at the smallest size", ".3f"),
    "ratio_at_largest": ("ratio at the largest size", ".3f"), "where": ("where", None),
    # cost and prediction
    "days": ("days", ",.3~r"), "cost": ("{cost}", ",.4~s"), "energy": ("kWh", ",.4~s"),
    "joules_from": ("energy from", None),
    "predicted_tokens_per_s": ("predicted tokens/s", ",.4~s"),
    "ratio": ("predicted over actual", ".3f"), "points": ("points", ""),
    "middle": ("median", ".3f"), "lower": ("lower quartile", ".3f"),
    "upper": ("upper quartile", ".3f"),
    # other clusters and probes
    "model": ("model", None), "cluster": ("cluster", None), "kind": ("collective", None),
    "nodes": ("nodes", "d"), "ranks": ("ranks of a group", "d"),
    "stride": ("ranks between neighbours", "d"), "at_once": ("groups at once", "d"),
    "message_bytes": ("bytes", ",d"), "rate": ("GB/s", ".4~g"),
    "precision": ("precision", None), "m": ("m", "d"), "n": ("n", "d"), "k": ("k", "d"),
    "flop_per_s": ("FLOP/s", ".4~s"), "probes": ("probes", "d"),
}  # fmt: skip
