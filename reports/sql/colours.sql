-- Grain: one row per setting and layout of the study.
-- Needs: names, ranking, advised
-- slot: the layout's colour throughout the report, 1 to 6; 7 is the grey of all others. Advised
-- layouts come first, in the order of their sizes, then those that are fastest somewhere, then the
-- closest rivals, those that ran at more than one size first.
with leading_series as (  -- the one that the report speaks of
    select setting_id, series
    from ranking
    group by setting_id, series
    qualify row_number() over (
        partition by setting_id order by list_position(getvariable('series_order'), series)
    ) = 1
),
standings as (
    select
        setting_id, layout,
        min(world_size) filter (where position = 1) as fastest_from,
        count(distinct world_size) > 1 as at_several_sizes,
        avg(share_of_best) as mean_share
    from ranking
    where series != 'predicted' or setting_id not in (
        select setting_id from ranking where series != 'predicted'
    )
    group by setting_id, layout
),
advice as (
    select setting_id, layout, min(world_size) as advised_from
    from advised
    semi join leading_series using (setting_id, series)
    group by setting_id, layout
)
select
    setting_id, layout, layout_name, layout_lines,
    least(7, row_number() over (
        partition by setting_id
        order by
            advised_from nulls last, fastest_from nulls last, at_several_sizes desc nulls last,
            mean_share desc nulls last, layout
    )) as slot
from names
left join standings using (setting_id, layout)
left join advice using (setting_id, layout)
order by setting_id, slot, layout
