-- Grain: one row per setting and layout of the study.
-- Needs: choices, axes
-- layout_name: for people, the choices that differ between the points of the setting.
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
)
select
    choices.*,
    row_number() over (order by setting_id, layout) as layout_id,
    coalesce(layout_name, layout) as layout_name,
    coalesce(nullif(concat_ws('|', degrees, rest), ''), layout) as layout_lines
from choices
left join spoken using (setting_id, layout)
order by setting_id, layout
