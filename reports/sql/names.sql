-- Grain: one row per setting and layout of the study.
-- Needs: layout_choices, differing_choices, worded_choices
-- layout_name: the choices in which the layouts of the setting differ; for the only layout of a
-- setting the choices that are always named.
-- layout_lines: the same for a chart, shorter, lines separated by |.
-- layout_id: a number for joins; it changes with the study.
-- Other columns: the choice on each axis.
with differences as (
    select
        setting_id, layout,
        string_agg(words, ', ' order by axis_order) as layout_name,
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
    anti join (from differences where layout_name is not null) using (setting_id, layout)
    where always
    group by setting_id, layout
)
select
    layout_choices.*,
    row_number() over (order by setting_id, layout) as layout_id,
    coalesce(layout_name, only_layouts.words, layout) as layout_name,
    coalesce(nullif(concat_ws('|', degrees, other_choices), ''), only_layouts.lines, layout)
        as layout_lines
from layout_choices
left join differences using (setting_id, layout)
left join only_layouts using (setting_id, layout)
order by setting_id, layout
