-- Grain: one row per setting and layout of the study.
-- Needs: layout_choices, differing_choices, worded_choices, choices_by_axis
-- layout_name: the choices in which the layouts of the setting differ; where it differs in none, the
-- choices that are always named and those that are not the usual ones. Of layouts with equal words
-- each says what it leaves unstated and another states.
-- layout_lines: the same for a chart, shorter, lines separated by |.
-- layout_id: a number for joins; it changes with the study.
-- Other columns: the choice on each axis.
with differences as (
    select
        setting_id, layout,
        string_agg(words, ', ' order by axis_order) as words,
        string_agg(short, ' ' order by axis_order) filter (where degree) as degrees,
        string_agg(short, ' ' order by axis_order) filter (where not degree) as other_choices
    from differing_choices
    group by setting_id, layout
),
only_layouts as (
    select
        setting_id, layout,
        string_agg(words, ', ' order by axis_order) as words,
        string_agg(short, ' ' order by axis_order) as lines
    from worded_choices
    anti join (from differences where words is not null) using (setting_id, layout)
    where alone
    group by setting_id, layout
),
left_open as (
    select setting_id, layout, string_agg(axis, ', ' order by axis_order) as unstated
    from (
        from choices_by_axis
        qualify value is null and count(value) over (partition by setting_id, name) > 0
    )
    join catalogue.axes using (name)
    where usual is not null
    group by setting_id, layout
),
worded as (
    select
        setting_id, layout, unstated,
        coalesce(differences.words, only_layouts.words, layout) as words,
        coalesce(nullif(concat_ws('|', degrees, other_choices), ''), only_layouts.lines, layout)
            as layout_lines
    from layout_choices
    left join differences using (setting_id, layout)
    left join only_layouts using (setting_id, layout)
    left join left_open using (setting_id, layout)
)
select
    layout_choices.*,
    row_number() over (order by setting_id, layout) as layout_id,
    concat(words, if(
        count(*) over (partition by setting_id, words) > 1, ' (' || unstated || ' unstated)', ''
    )) as layout_name,
    layout_lines
from layout_choices
join worded using (setting_id, layout)
order by setting_id, layout
