-- Grain: one row per setting, axis on which its layouts differ, and layout.
-- Needs: choices
-- The axes and their words are those of scaling/layout/axes.py, as catalogue.axes and catalogue.levels.
-- axis: as tables name it. level: the choice; place: orders the levels of an axis.
-- words, short: how a text and a chart say the choice; null where it goes without saying.
-- otherwise: what a chart says where the others' choice does not go without saying.
-- degree: on the first of the two lines of a chart's label. axis_order: as people say them.
with chosen as (
    select setting_id, layout, columns(lambda name: name in getvariable('axes'))::varchar
    from choices
),
listed as (
    from chosen unpivot include nulls (value for name in (columns(* exclude (setting_id, layout))))
),
said as (
    select
        listed.setting_id, listed.layout, axes.axis_order, axes.axis,
        -- any other value is a count
        if(levels.name is null, try_cast(listed.value as double), levels.place) as place,
        if(levels.name is null, listed.value, levels.level) as level,
        if(levels.name is null, replace(axes.words, '{}', listed.value), levels.words) as words,
        if(levels.name is null, replace(axes.short, '{}', listed.value), levels.short) as short,
        axes.otherwise, axes.degree
    from listed
    join catalogue.axes as axes using (name)
    left join catalogue.levels as levels
        on levels.name = listed.name and levels.value is not distinct from listed.value
),
differing as (
    select setting_id, axis
    from said
    group by setting_id, axis
    having min(place) != max(place)
)
from said
semi join differing using (setting_id, axis)
