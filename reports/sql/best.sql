-- Grain: one row per setting, series and world_size at which a layout ran: the fastest of them.
-- Needs: layouts, ranking, colours, axes, advised, coinciding, names
-- The runner-up is the fastest other layout. tied: the intervals of the two overlap.
-- advised_layout_name: of the layout to use there, which is the fastest or not told apart from it.
-- advised_row_layout, _name, _stack: of the row that is its, or that of the layout it coincides with there.
-- slot: the colour of the advised layout, whose rate is the fastest's or not told apart from it.
-- label: for a chart, what differs between the advised layouts, lines parted by |; only where the advice
-- is not that of the size before, else null.   margin: see ranking.
-- ideal_tokens_per_s: the rate per GPU at the smallest size, times world_size. Predictions that are
-- drawn beside rows that ran are held to the yardstick of those rows, as the chart's one ideal line is.
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
    select layouts.*, ranking.margin
    from layouts
    join ranking using (setting_id, series, world_size, layout, stack_fingerprint)
    where ranking.position = 1
),
spoken as (  -- each advised layout by the axes on which those of its setting differ
    select
        setting_id,
        layout,
        string_agg(coalesce(short, otherwise), ' ' order by axis_order) filter (where degree)
            as degrees,
        string_agg(coalesce(short, otherwise), ' ' order by axis_order) filter (where not degree)
            as choices
    from axes
    semi join advised using (setting_id, layout)
    semi join (
        select setting_id, axis
        from axes
        semi join advised using (setting_id, layout)
        group by setting_id, axis
        having min(place) != max(place)
    ) as telling using (setting_id, axis)
    group by setting_id, layout
),
named as (
    select
        advised.setting_id, advised.series, advised.world_size,
        advised.layout as advised_layout,
        advised.layout_name as advised_layout_name,
        coalesce(nullif(concat_ws('|', degrees, choices), ''), names.layout_lines) as parts
    from advised
    join names using (setting_id, layout)
    left join spoken using (setting_id, layout)
),
advised_rows as (
    select
        advised.setting_id, advised.series, advised.world_size,
        ranking.layout as advised_row_layout,
        ranking.layout_name as advised_row_name,
        ranking.stack_fingerprint as advised_row_stack
    from advised
    join ranking using (setting_id, series, world_size)
    left join coinciding on coinciding.setting_id = advised.setting_id
        and coinciding.world_size = advised.world_size and coinciding.layout = advised.layout
    where ranking.layout in (advised.layout, coinciding.same)
    qualify row_number() over (
        partition by advised.setting_id, advised.series, advised.world_size order by position
    ) = 1
),
labelled as (
    select
        fastest.*, advised_layout, advised_layout_name, parts, colours.slot,
        advised_row_layout, advised_row_name, advised_row_stack
    from fastest
    left join named using (setting_id, series, world_size)
    left join advised_rows using (setting_id, series, world_size)
    join colours on colours.setting_id = fastest.setting_id
        and colours.layout = coalesce(advised_layout, fastest.layout)
),
placed as (
    select
        labelled.*,
        labelled.series != 'predicted' or world_size > coalesce(
            max(world_size) filter (where labelled.series != 'predicted')
                over (partition by setting_id), 0
        ) as drawn,
        first_value(tokens_per_s_per_gpu) over (
            partition by setting_id, series order by world_size
        ) as own_yardstick,
        first_value(world_size) over (
            partition by setting_id, series order by world_size
        ) as own_smallest,
        first_value(if(series = 'predicted', null, tokens_per_s_per_gpu) ignore nulls) over (
            partition by setting_id order by series = 'predicted', series, world_size
            rows between unbounded preceding and unbounded following
        ) as firm_yardstick,
        first_value(if(series = 'predicted', null, world_size) ignore nulls) over (
            partition by setting_id order by series = 'predicted', series, world_size
            rows between unbounded preceding and unbounded following
        ) as firm_smallest,
        if(series = 'predicted' and drawn, coalesce(firm_yardstick, own_yardstick), own_yardstick)
            as yardstick,
        if(series = 'predicted' and drawn, coalesce(firm_smallest, own_smallest), own_smallest)
            as smallest
    from labelled
)
select
    placed.* exclude (
        parts, own_yardstick, own_smallest, firm_yardstick, firm_smallest, yardstick, smallest
    ),
    case when lag(advised_layout) over sizes is distinct from advised_layout then parts end
        as label,
    runner_up.layout as runner_up_layout,
    runner_up.layout_name as runner_up_layout_name,
    runner_up.stack_fingerprint as runner_up_stack_fingerprint,
    runner_up.tokens_per_s as runner_up_tokens_per_s,
    runner_up.tokens_per_s_low as runner_up_tokens_per_s_low,
    runner_up.tokens_per_s_high as runner_up_tokens_per_s_high,
    runner_up.within_noise as tied,
    yardstick * world_size as ideal_tokens_per_s,
    placed.tokens_per_s / (yardstick * smallest) as speed_up,
    placed.tokens_per_s / ideal_tokens_per_s as efficiency,
    placed.tokens_per_step / placed.energy_j as tokens_per_joule,
    placed.mean_power_w / world_size as power_per_gpu_w,
    field.slowest_share
from placed
left join runner_up using (setting_id, series, world_size)
join (
    select setting_id, series, world_size, min(share_of_best) as slowest_share
    from ranking
    group by setting_id, series, world_size
) as field using (setting_id, series, world_size)
window sizes as (partition by setting_id, series order by world_size)
order by setting_id, series, world_size
