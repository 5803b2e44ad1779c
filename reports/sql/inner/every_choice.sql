-- Grain: one row per setting, layout and axis that tells its layouts apart or is always said.
-- Needs: listed_choices
-- The axes and their words are those of scaling/layout/axes.py, as catalogue.axes and catalogue.levels.
-- differs: layouts of the setting differ on the axis.   always: said of a layout that has nothing to be
-- told from.   The other columns are those of `axes`.
with spelled as (  -- values first: thousands of layouts share a few
    select
        listed.setting_id, listed.name, listed.value, axes.* exclude (name),
        levels.name is not null as named,
        -- any other value is a count, or a word of others, which come after ours, each in its place
        if(named, levels.place, coalesce(
            try_cast(listed.value as double),
            if(listed.value is null, null, 1e9 + dense_rank() over (partition by listed.name order by listed.value))
        )) as place,
        if(named, levels.level, listed.value) as level,
        if(named, levels.words, replace(axes.words, '{}', listed.value)) as value_words,
        if(named, levels.short, replace(axes.short, '{}', listed.value)) as value_short
    from (select distinct setting_id, name, value from listed_choices) as listed
    join catalogue.axes as axes using (name)
    left join catalogue.levels as levels
        on levels.name = listed.name and levels.value is not distinct from listed.value
),
told as (
    select *, min(place) over one_axis is distinct from max(place) over one_axis as differs
    from spelled
    window one_axis as (partition by setting_id, name)
    qualify differs or always
),
single as (
    select setting_id, layout, name
    from listed_choices
    where value = '1' and name in (select within from catalogue.axes)
)
select
    told.setting_id, listed.layout, axis_order, axis, place, level,
    -- a count of none, and how a pipeline of one stage is run, go without saying
    coalesce(told.value = unsaid, false) or single.name is not null as plain,
    if(plain, null, value_words) as words,
    if(plain, null, value_short) as short,
    if(plain and not named or single.name is not null, null, otherwise) as otherwise,
    degree, always, differs
from listed_choices as listed
join told
    on told.setting_id = listed.setting_id and told.name = listed.name
    and told.value is not distinct from listed.value
left join single
    on single.setting_id = listed.setting_id and single.layout = listed.layout
    and single.name = told.within
