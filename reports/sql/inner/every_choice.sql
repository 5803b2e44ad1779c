-- Grain: one row per setting, layout and axis.
-- Needs: choices
-- The axes and their words are those of scaling/layout/axes.py, as catalogue.axes and catalogue.levels.
-- The columns are those of `axes`; always: said of a layout that has nothing to be told from.
with chosen as (
    select setting_id, layout, columns(lambda name: name in getvariable('axes'))::varchar
    from choices
),
listed as (
    from chosen unpivot include nulls (value for name in (columns(* exclude (setting_id, layout))))
)
select
    listed.setting_id, listed.layout, axes.axis_order, axes.axis,
    -- any other value is a count, or a word of others: after ours, in some order
    if(levels.name is null, coalesce(
        try_cast(listed.value as double), if(listed.value is null, null, 1000 + hash(listed.value) % 1000)
    ), levels.place) as place,
    if(levels.name is null, listed.value, levels.level) as level,
    -- a count of none, and how a pipeline of one stage is run, go without saying
    coalesce(listed.value = axes.unsaid, false) or coalesce(degree.value = '1', false) as plain,
    case
        when plain then null
        when levels.name is null then replace(axes.words, '{}', listed.value)
        else levels.words
    end as words,
    case
        when plain then null
        when levels.name is null then replace(axes.short, '{}', listed.value)
        else levels.short
    end as short,
    if(plain and levels.name is null or degree.value = '1', null, axes.otherwise) as otherwise,
    axes.degree, axes.always
from listed
join catalogue.axes as axes using (name)
left join catalogue.levels as levels
    on levels.name = listed.name and levels.value is not distinct from listed.value
left join listed as degree
    on degree.setting_id = listed.setting_id and degree.layout = listed.layout
    and degree.name = axes.within
