-- Grain: one row per setting, series, world_size, layout and stack that was tried.
-- Needs: layouts, ranking, colours
-- drawn: the charts show it; a prediction only for a layout that was not tried at that size.
-- place: order in a chart, what ran or failed before what is predicted.
-- position: 1 is the fastest; those that failed follow those that ran.   slot: see colours.
with judged as (
    select
        layouts.*,
        colours.slot,
        row_number() over (
            partition by setting_id, series, world_size
            order by ranking.position nulls last, layout, stack_fingerprint
        ) as position,
        ranking.share_of_best,
        ranking.within_noise,
        layouts.series != 'predicted' or not exists (
            from layouts as seen
            where seen.setting_id = layouts.setting_id and seen.world_size = layouts.world_size
                and seen.layout = layouts.layout and seen.series != 'predicted'
        ) as drawn
    from layouts
    left join ranking using (setting_id, series, world_size, layout, stack_fingerprint)
    join colours using (setting_id, layout)
)
select
    *,
    row_number() over (
        partition by setting_id, world_size order by not drawn, series = 'predicted', position
    ) as place
from judged
