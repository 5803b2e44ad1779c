-- Grain: one row per point of the study, run or not.
-- Needs: planned, measurements
-- outcome and every measured value: null for a point that has not run.
select
    planned.setting_id,
    planned.point_id,
    planned.repeat,
    planned.layout,
    planned.layout_name,
    planned.world_size,
    planned.tp,
    planned.pp,
    planned.cp,
    planned.dp,
    planned.zero_stage,
    planned.sequence_parallel,
    planned.micro_batch_size,
    planned.gradient_accumulation_steps,
    planned.activation_checkpointing,
    planned.attention,
    planned.fused_norm,
    planned.precision,
    measurements.* exclude (
        setting_id, point_id, repeat, layout, layout_name, world_size, tp, pp, cp, dp, zero_stage,
        sequence_parallel, micro_batch_size, gradient_accumulation_steps,
        activation_checkpointing, attention, fused_norm, precision
    )
from planned
left join measurements using (point_id)
order by
    planned.setting_id, measurements.tokens_per_s desc nulls last,
    planned.world_size, planned.layout, planned.repeat
