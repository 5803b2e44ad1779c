-- Grain: one row per point of the study, run or not, and per row that others published.
-- outcome and all measured columns: null for a point that has not run.
-- predicted_*: the prediction of the same layout at that size, also beside published rows; null if
-- none.
-- unstated: see `accuracy`.
with points as (
    select
        group_id, point_id, repeat, layout, world_size, dp, gradient_accumulation_steps,
        source, attempt, outcome, error_message, losses_agree,
        tokens_per_s, tokens_per_s_low, tokens_per_s_high, tokens_per_s_per_gpu,
        mfu, hfu, model_flop_per_s_per_gpu,
        step_time_s, step_time_low_s, step_time_high_s,
        peak_memory_bytes, energy_j, mean_power_w, exposed_comm_s,
        startup_s, duration_s, stack_fingerprint
    from measurements
    where source != 'predicted'
    union all by name
    select group_id, point_id, repeat, layout, world_size, dp, gradient_accumulation_steps
    from waiting_points
)
select
    points.*,
    names.* exclude (group_id, layout, layout_id),
    predicted_layouts.* exclude (group_id, world_size, layout)
from points
join names using (group_id, layout)
left join predicted_layouts using (group_id, world_size, layout)
order by group_id, world_size, layout, repeat, point_id, source
