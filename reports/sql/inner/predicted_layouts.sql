-- Grain: one row per comparison group, world_size and layout for which there is a prediction.
-- Predicted layouts, and published ones with the prediction of their counterpart.
with predictions as (
    select
        group_id, world_size, layout as predicted_layout,
        any_value(outcome) as predicted_outcome,
        any_value(step_time_s) as predicted_step_time_s,
        any_value(tokens_per_s) as predicted_tokens_per_s,
        any_value(predicted_memory_bytes) as predicted_memory_bytes,
        any_value(stack_fingerprint) as predicted_from
    from measurements
    where source = 'predicted'
    group by group_id, world_size, layout
),
matches as (
    select group_id, world_size, layout, predicted_layout, unstated from counterparts
    union all
    select group_id, world_size, predicted_layout as layout, predicted_layout, null
    from predictions
    where (group_id, world_size, layout) not in (
        select (group_id, world_size, layout) from counterparts
    )
)
select * exclude (predicted_layout, unstated), unstated
from matches
join predictions using (group_id, world_size, predicted_layout)
