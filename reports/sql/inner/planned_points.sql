-- Grain: one row per point of the study, whether it ran or not.
-- Its layout's choices are in `layout_choices`.
select
    group_id, point_id, repeat, layout, world_size, dp, global_batch_size,
    gradient_accumulation_steps, tokens_per_step, model_flops_per_token,
    hardware_flops_per_token, peak_flop_per_s
from study.points
join comparison_groups
    using (model, cluster, study_kind, seq_length, kept_batch_size, kept_choices)
