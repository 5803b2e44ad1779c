-- Grain: one row per point of the study, run or not (two if others published the same point).
-- Needs: planned, names, measurements
-- outcome and every measured value: null for a point that has not run. predicted_*: what the
-- predictor says of the same layout there, of rows of others too, in its own columns; null without predictions.
with observed as (
    from measurements where series != 'predicted' and not beside_measured
),
foretold as (
    select
        setting_id, world_size, layout,
        any_value(columns(['outcome', 'step_time_s', 'tokens_per_s', 'predicted_memory_bytes',
            'stack_fingerprint']))
    from measurements
    where series = 'predicted'
    group by setting_id, world_size, layout
)
select
    planned.* exclude (
        global_batch_size, tokens_per_step, model_flops_per_token, hardware_flops_per_token,
        peak_flop_per_s
    ),
    names.layout_name,
    observed.series, observed.attempt, observed.outcome, observed.error_message,
    observed.losses_agree,
    observed.tokens_per_s, observed.tokens_per_s_low, observed.tokens_per_s_high,
    observed.tokens_per_s_per_gpu, observed.mfu, observed.hfu, observed.model_flop_per_s_per_gpu,
    observed.step_time_s, observed.step_time_low_s, observed.step_time_high_s,
    observed.step_time_p95_s,
    observed.peak_memory_bytes, observed.energy_j, observed.mean_power_w, observed.exposed_comm_s,
    observed.startup_s, observed.duration_s, observed.stack_fingerprint,
    foretold.outcome as predicted_outcome,
    foretold.step_time_s as predicted_step_time_s,
    foretold.tokens_per_s as predicted_tokens_per_s,
    foretold.predicted_memory_bytes,
    foretold.stack_fingerprint as predicted_from
from planned
join names using (setting_id, layout)
left join observed using (point_id)
left join foretold on foretold.setting_id = planned.setting_id
    and foretold.world_size = planned.world_size and foretold.layout = planned.layout
