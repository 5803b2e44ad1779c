-- Grain: one row per comparison group, layout and axis (`name`): the choice as text, null where not stated.
with choices as (
    select group_id, layout, columns(lambda name: name in getvariable('axes'))::varchar
    from layout_choices
)
from choices unpivot include nulls (value for name in (columns(* exclude (group_id, layout))))
