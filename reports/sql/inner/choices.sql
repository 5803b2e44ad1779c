-- Grain: one row per setting and layout of the study: what it chooses on every axis.
-- Needs: planned
-- Without dp and gradient_accumulation_steps, which follow from the size.
select
    setting_id,
    layout,
    any_value(columns([
        'tp', 'pp', 'cp', 'zero_stage', 'zero_shard_size', 'optimizer_offload',
        'pipeline_schedule', 'sequence_parallel', 'micro_batch_size', 'activation_checkpointing',
        'attention', 'fused_norm', 'fused_rope', 'fused_mlp', 'fused_cross_entropy', 'compile',
        'precision'
    ]))
from planned
group by setting_id, layout
