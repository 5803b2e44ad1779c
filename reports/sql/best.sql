-- Grain: one row per setting, series and world_size at which a layout ran: the fastest of them.
-- Needs: layouts, ranking, colours, axes
-- The runner-up is the fastest other layout. tied: the intervals of the two overlap.
-- label: for a chart, what differs between the layouts that are fastest somewhere, lines parted
-- by |; only where the layout is not that of the size before, else null.
-- ideal_tokens_per_s: the rate per GPU at the smallest size, times world_size.
-- slowest_share: tokens_per_s of the slowest layout that ran, as a share of the fastest.
-- tokens_per_joule: as measured, all devices together; power_per_gpu_w: mean W of one of them.
-- drawn: the charts show it; predictions only beyond the sizes at which something ran.
-- speed_up, efficiency: ratios to the smallest size that ran; efficiency is speed-up per GPU added.
with runner_up as (
    select second.*
    from ranking as second
    join ranking as first using (setting_id, series, world_size)
    where first.position = 1 and second.layout != first.layout
    qualify row_number() over (
        partition by setting_id, series, world_size order by second.position
    ) = 1
),
fastest as (
    select layouts.*
    from layouts
    join ranking using (setting_id, series, world_size, layout, stack_fingerprint)
    where ranking.position = 1
),
spoken as (  -- each winner by the axes on which the winners of its setting differ
    select
        setting_id,
        layout,
        string_agg(coalesce(short, otherwise), ' ' order by axis_order) filter (where degree)
            as degrees,
        string_agg(coalesce(short, otherwise), ' ' order by axis_order) filter (where not degree)
            as choices
    from axes
    semi join fastest using (setting_id, layout)
    semi join (
        select setting_id, axis
        from axes
        semi join fastest using (setting_id, layout)
        group by setting_id, axis
        having min(place) != max(place)
    ) as telling using (setting_id, axis)
    group by setting_id, layout
),
labelled as (
    select fastest.*, nullif(concat_ws('|', degrees, choices), '') as parts
    from fastest
    left join spoken using (setting_id, layout)
)
select
    labelled.* exclude (parts),
    colours.slot,
    case when lag(labelled.layout) over sizes is distinct from labelled.layout
        then coalesce(parts, labelled.layout_lines) end as label,
    runner_up.layout as runner_up_layout,
    runner_up.layout_name as runner_up_layout_name,
    runner_up.stack_fingerprint as runner_up_stack_fingerprint,
    runner_up.tokens_per_s as runner_up_tokens_per_s,
    runner_up.tokens_per_s_low as runner_up_tokens_per_s_low,
    runner_up.tokens_per_s_high as runner_up_tokens_per_s_high,
    runner_up.within_noise as tied,
    first_value(labelled.tokens_per_s_per_gpu) over sizes * world_size as ideal_tokens_per_s,
    labelled.tokens_per_s / first_value(labelled.tokens_per_s) over sizes as speed_up,
    labelled.tokens_per_s / ideal_tokens_per_s as efficiency,
    labelled.tokens_per_step / labelled.energy_j as tokens_per_joule,
    labelled.mean_power_w / world_size as power_per_gpu_w,
    field.slowest_share,
    labelled.series != 'predicted' or world_size > coalesce(
        max(world_size) filter (where labelled.series != 'predicted')
            over (partition by setting_id), 0
    ) as drawn
from labelled
join colours using (setting_id, layout)
left join runner_up using (setting_id, series, world_size)
join (
    select setting_id, series, world_size, min(share_of_best) as slowest_share
    from ranking
    group by setting_id, series, world_size
) as field using (setting_id, series, world_size)
window sizes as (partition by setting_id, series order by world_size)
order by setting_id, series, world_size
