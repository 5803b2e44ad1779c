-- Grain: one row per setting and layout of the study.
-- Needs: choices, axes, every_choice
-- layout_name: for people, the choices that differ between the points of the setting; of the only layout
-- of a setting those that every layout makes.
-- layout_lines: the same for a chart, shorter, lines parted by |.
-- layout_id: of the setting's layout, for joins; it changes with the study.
-- The other columns: see choices.
with spoken as (
    select
        setting_id,
        layout,
        string_agg(words, ', ' order by axis_order) as layout_name,
        string_agg(short, ' ' order by axis_order) filter (where degree) as degrees,
        string_agg(short, ' ' order by axis_order) filter (where not degree) as rest
    from axes
    group by setting_id, layout
),
alone as (
    select
        setting_id,
        layout,
        string_agg(words, ', ' order by axis_order) as words,
        string_agg(short, ' ' order by axis_order) as lines
    from every_choice
    anti join (from spoken where layout_name is not null) using (setting_id, layout)
    where always
    group by setting_id, layout
)
select
    choices.*,
    row_number() over (order by setting_id, layout) as layout_id,
    coalesce(layout_name, alone.words, layout) as layout_name,
    coalesce(nullif(concat_ws('|', degrees, rest), ''), alone.lines, layout) as layout_lines
from choices
left join spoken using (setting_id, layout)
left join alone using (setting_id, layout)
order by setting_id, layout
