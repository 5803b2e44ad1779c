-- Grain: one row per setting, layout and axis (`name`): what it chooses there, as text; null where unsaid.
-- Needs: choices
with chosen as (
    select setting_id, layout, columns(lambda name: name in getvariable('axes'))::varchar
    from choices
)
from chosen unpivot include nulls (value for name in (columns(* exclude (setting_id, layout))))
