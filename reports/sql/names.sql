-- Grain: one row per comparison group and layout of the study.
-- layout_name: what the layout has beyond the plainest one (scaling/layout/names.py).
-- layout_id: a number for joins; it changes with the study.
-- Other columns: the choice on each axis.
select
    layout_choices.*,
    row_number() over (order by group_id, layout) as layout_id,
    layout_name
from layout_choices
join layout_words using (group_id, layout)
order by group_id, layout
