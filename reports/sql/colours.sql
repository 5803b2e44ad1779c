-- Grain: one row per setting and layout of the study.
-- Needs: names, ranking, advised
-- slot: the colour that names the layout all through the report. Advised layouts take the first in the
-- order of their sizes, then those that are fastest somewhere, then the closest rivals, those that
-- ran at more than one size first; 7 is the grey of all others.
with spoken as (
    select setting_id, series
    from ranking
    group by setting_id, series
    qualify row_number() over (
        partition by setting_id order by list_position(getvariable('series_order'), series)
    ) = 1
),
standing as (
    select
        setting_id,
        layout,
        min(world_size) filter (where position = 1) as wins_from,
        count(distinct world_size) > 1 as ran_widely,
        avg(share_of_best) as mean_share
    from ranking
    where series != 'predicted' or setting_id not in (
        select setting_id from ranking where series != 'predicted'
    )
    group by setting_id, layout
),
chosen as (
    select setting_id, layout, min(world_size) as advised_from
    from advised
    semi join spoken using (setting_id, series)
    group by setting_id, layout
)
select
    setting_id,
    layout,
    layout_name,
    layout_lines,
    least(7, row_number() over (
        partition by setting_id
        order by
            advised_from nulls last, wins_from nulls last, ran_widely desc nulls last,
            mean_share desc nulls last, layout
    )) as slot
from names
left join standing using (setting_id, layout)
left join chosen using (setting_id, layout)
order by setting_id, slot, layout
