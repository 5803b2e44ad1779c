-- Grain: one row per comparison group and layout of the study: its choice on every axis.
-- Without dp and gradient_accumulation_steps, which follow from world_size.
select group_id, layout, any_value(columns(lambda name: name in getvariable('axes')))
from study.points
join comparison_groups
    using (model, cluster, study_kind, seq_length, kept_batch_size, kept_choices)
group by group_id, layout
