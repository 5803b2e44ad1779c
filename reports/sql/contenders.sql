-- Grain: one row per setting, series, world_size, layout and stack that was tried.
-- Needs: layouts, ranking, colours
-- position: 1 is the fastest; those that failed follow those that ran.   slot: see colours.
select
    layouts.*,
    colours.slot,
    row_number() over (
        partition by setting_id, series, world_size
        order by ranking.position nulls last, layout, stack_fingerprint
    ) as position,
    ranking.share_of_best,
    ranking.within_noise
from layouts
left join ranking using (setting_id, series, world_size, layout, stack_fingerprint)
join colours using (setting_id, layout)
order by setting_id, series, world_size, position
