-- Grain: one row per comparison group, axis on which its layouts differ, and layout.
-- axis: its title in tables.   axis_order: the order in which people name the axes.
-- level: the choice.   place: position of the level on its axis; null where the choice is not stated.
-- Levels come from scaling/layout/axes.py, as catalogue.levels.
with leveled as (  -- distinct values first: thousands of layouts share a few
    select
        chosen.group_id, chosen.name, chosen.value, axis_order, axis,
        -- any other value is a count or a publisher's own word; words come last, in alphabetical order
        if(levels.name is not null, levels.place, coalesce(
            try_cast(chosen.value as double),
            if(chosen.value is null, null, 1e9 + dense_rank() over (
                partition by chosen.name order by chosen.value
            ))
        )) as place,
        if(levels.name is not null, levels.level, chosen.value) as level
    from (select distinct group_id, name, value from choices_by_axis) as chosen
    join catalogue.axes as axes using (name)
    left join catalogue.levels as levels
        on levels.name = chosen.name and levels.value is not distinct from chosen.value
),
differing as (
    from leveled
    window one_axis as (partition by group_id, name)
    qualify min(place) over one_axis is distinct from max(place) over one_axis
)
select differing.group_id, chosen.layout, axis_order, axis, place, level
from choices_by_axis as chosen
join differing
    on differing.group_id = chosen.group_id and differing.name = chosen.name
    and differing.value is not distinct from chosen.value
