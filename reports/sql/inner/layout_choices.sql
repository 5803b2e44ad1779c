-- Grain: one row per setting and layout of the study: its choice on every axis.
-- Needs: settings
-- Without dp and gradient_accumulation_steps, which follow from world_size.
select setting_id, layout, any_value(columns(lambda name: name in getvariable('axes')))
from study.points
join settings
    using (model, cluster, study_kind, seq_length, kept_batch_size, kept_choices)
group by setting_id, layout
