-- Grain: one row per setting, layout and axis on which its layouts differ or that a lone layout names.
-- Needs: choices_by_axis
-- Words and levels come from scaling/layout/axes.py, as catalogue.axes and catalogue.levels.
-- differs: layouts of the setting differ on the axis.
-- alone: named of a layout that has no other to differ from: some axes always, others where the
-- choice is not the usual one, unless it belongs to the setting.
-- plain: the choice goes without saying.   Other columns: see `differing_choices`.
with worded_values as (  -- distinct values first: thousands of layouts share a few
    select
        chosen.setting_id, chosen.name, chosen.value, axes.* exclude (name),
        levels.name is not null as is_level,
        always or coalesce(chosen.value != usual, false) and not setting as alone,
        -- any other value is a count or a publisher's own word; words come last, in alphabetical order
        if(is_level, levels.place, coalesce(
            try_cast(chosen.value as double),
            if(chosen.value is null, null, 1e9 + dense_rank() over (
                partition by chosen.name order by chosen.value
            ))
        )) as place,
        if(is_level, levels.level, chosen.value) as level,
        if(is_level, levels.words, replace(axes.words, '{}', chosen.value)) as value_words,
        if(is_level, levels.short, replace(axes.short, '{}', chosen.value)) as value_short
    from (select distinct setting_id, name, value from choices_by_axis) as chosen
    join catalogue.axes as axes using (name)
    left join catalogue.levels as levels
        on levels.name = chosen.name and levels.value is not distinct from chosen.value
),
named_values as (
    select *, min(place) over one_axis is distinct from max(place) over one_axis as differs
    from worded_values
    window one_axis as (partition by setting_id, name)
    qualify differs or alone
),
degrees_of_one as (
    select setting_id, layout, name
    from choices_by_axis
    where value = '1' and name in (select within from catalogue.axes)
)
select
    named_values.setting_id, chosen.layout, axis_order, axis, place, level,
    -- a count of none goes without saying, and so does how a pipeline of one stage is run
    coalesce(named_values.value = unsaid, false) or degrees_of_one.name is not null as plain,
    if(plain, null, value_words) as words,
    if(plain, null, value_short) as short,
    if(plain and not is_level or degrees_of_one.name is not null, null, otherwise) as otherwise,
    degree, alone, differs
from choices_by_axis as chosen
join named_values
    on named_values.setting_id = chosen.setting_id and named_values.name = chosen.name
    and named_values.value is not distinct from chosen.value
left join degrees_of_one
    on degrees_of_one.setting_id = chosen.setting_id and degrees_of_one.layout = chosen.layout
    and degrees_of_one.name = named_values.within
