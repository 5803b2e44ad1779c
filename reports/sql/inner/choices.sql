-- Grain: one row per setting and layout of the study: what it chooses on every axis.
-- Needs: planned
-- Without dp and gradient_accumulation_steps, which follow from the size.
select setting_id, layout, any_value(columns(lambda name: name in getvariable('axes')))
from planned
group by setting_id, layout
