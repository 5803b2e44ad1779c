-- Grain: one row per point of the study, run or not (two if others published the same point).
-- Needs: planned, names, measurements, counterparts
-- outcome and every measured value: null for a point that has not run. predicted_*: what the
-- predictor says of the same layout there, of rows of others too, in its own columns; null without predictions.
-- unstated: axes of which a row of others says nothing, where the prediction chooses what is not usual.
with every_point as (
    select
        setting_id, point_id, repeat, layout, world_size, dp, gradient_accumulation_steps,
        series, attempt, outcome, error_message, losses_agree,
        tokens_per_s, tokens_per_s_low, tokens_per_s_high, tokens_per_s_per_gpu,
        mfu, hfu, model_flop_per_s_per_gpu,
        step_time_s, step_time_low_s, step_time_high_s, step_time_p95_s,
        peak_memory_bytes, energy_j, mean_power_w, exposed_comm_s,
        startup_s, duration_s, stack_fingerprint
    from measurements
    where series != 'predicted' and not beside_measured
    union all by name
    select setting_id, point_id, repeat, layout, world_size, dp, gradient_accumulation_steps
    from planned
    where point_id not in (
        select point_id from measurements where series != 'predicted' and not beside_measured
    )
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
    every_point.*,
    names.* exclude (setting_id, layout, layout_id, layout_lines),
    foretold.outcome as predicted_outcome,
    foretold.step_time_s as predicted_step_time_s,
    foretold.tokens_per_s as predicted_tokens_per_s,
    foretold.predicted_memory_bytes,
    foretold.stack_fingerprint as predicted_from,
    if(foretold.layout is not null, counterparts.unstated, null) as unstated
from every_point
join names using (setting_id, layout)
left join counterparts using (setting_id, world_size, layout)
left join foretold
    on foretold.setting_id = every_point.setting_id
    and foretold.world_size = every_point.world_size
    and foretold.layout = coalesce(counterparts.predicted_layout, every_point.layout)
