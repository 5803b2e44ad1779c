-- Grain: one row per setting, series and world_size at which a layout ran: the fastest layout.
-- Needs: layouts, ranking, colours, differing_choices, advised, coinciding, names
-- runner_up_*: the fastest other layout, not one that coincides with the fastest there.
-- tied: it is not told apart from the fastest.
-- tied_layouts: layouts not told apart from the fastest, less the advised one; layouts that coincide
-- there count once.
-- advised_layout, advised_layout_name: the layout to use, the fastest or one not told apart from
-- it.
-- advised_row_layout, _name, _stack: the row that measured it, possibly as a layout it coincides
-- with.
-- slot: the colour of the advised layout.   margin: see `ranking`.
-- label: for a chart, the choices in which the advised layouts differ, lines separated by |; null
-- where the advice is the same as at the size before.
-- drawn: the charts show it; predictions only beyond the sizes at which something ran, and full
-- steps only without short ones, which rank the same layouts.
-- ideal_tokens_per_s: the rate per GPU at the smallest size, times world_size.
-- speed_up, efficiency: ratio to the smallest size, of the rate and of the rate per GPU.
-- Predictions drawn beside rows that ran have the smallest size of those, since a chart has one
-- ideal line.
-- tokens_per_joule: as measured, all devices.   power_per_gpu_w: mean watts of one device.
-- slowest_share: tokens_per_s of the slowest layout that ran in the software of the fastest, as a
-- share of it; null if none other did.
with runner_up as (
    select second.*
    from ranking as second
    join ranking as first using (setting_id, series, world_size)
    where first.position = 1 and second.layout != first.layout
        and (setting_id, world_size, first.layout, second.layout) not in (
            select (setting_id, world_size, layout, same_as) from coinciding
        )
    qualify row_number() over (
        partition by setting_id, series, world_size order by second.position
    ) = 1
),
trainings as (  -- of the layouts not told apart from the fastest; those that coincide share one
    select setting_id, series, world_size, layout, least(layout, min(same_as)) as training
    from ranking
    left join coinciding using (setting_id, world_size, layout)
    where within_noise
    group by setting_id, series, world_size, layout
),
ties as (
    select setting_id, series, world_size, count(distinct training) - 1 as tied_layouts
    from trainings
    group by setting_id, series, world_size
),
fastest as (
    select layouts.*, ranking.margin
    from layouts
    join ranking using (setting_id, series, world_size, layout, stack_fingerprint)
    where ranking.position = 1
),
advised_choices as (
    from differing_choices semi join advised using (setting_id, layout)
),
advised_labels as (  -- each advised layout by the axes on which those of its setting differ
    select
        setting_id, layout,
        string_agg(coalesce(short, otherwise), ' ' order by axis_order) filter (where degree)
            as degrees,
        string_agg(coalesce(short, otherwise), ' ' order by axis_order) filter (where not degree)
            as other_choices
    from advised_choices
    semi join (
        select setting_id, axis
        from advised_choices
        group by setting_id, axis
        having min(place) != max(place)
    ) as differing_axes using (setting_id, axis)
    group by setting_id, layout
),
advised_names as (
    select
        advised.setting_id, advised.series, advised.world_size,
        advised.layout as advised_layout,
        advised.layout_name as advised_layout_name,
        coalesce(nullif(concat_ws('|', degrees, other_choices), ''), names.layout_lines) as lines
    from advised
    join names using (setting_id, layout)
    left join advised_labels using (setting_id, layout)
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
    where ranking.layout in (advised.layout, coinciding.same_as)
    qualify row_number() over (
        partition by advised.setting_id, advised.series, advised.world_size order by position
    ) = 1
),
own_baselines as (  -- the smallest size of each series
    select
        setting_id, series,
        min(world_size) as smallest,
        max(world_size) as largest,
        arg_min(tokens_per_s_per_gpu, world_size) as rate_per_gpu
    from fastest
    group by setting_id, series
),
observed_baselines as (  -- that of the first series that ran, and the largest size that ran
    select
        setting_id,
        max(largest) as largest,
        bool_or(series = 'extended') as in_short_steps,
        arg_min(smallest, series) as smallest,
        arg_min(rate_per_gpu, series) as rate_per_gpu
    from own_baselines
    where series != 'predicted'
    group by setting_id
),
with_baselines as (
    select
        fastest.*, advised_layout, advised_layout_name, colours.slot,
        advised_row_layout, advised_row_name, advised_row_stack,
        case fastest.series
            when 'predicted' then world_size > coalesce(observed.largest, 0)
            when 'measured' then not observed.in_short_steps
            else true
        end as drawn,
        lines,
        drawn and observed.smallest is not null and fastest.series = 'predicted'
            as beside_observed,
        if(beside_observed, observed.rate_per_gpu, own.rate_per_gpu) as baseline_rate_per_gpu,
        if(beside_observed, observed.smallest, own.smallest) as baseline_size
    from fastest
    left join advised_names using (setting_id, series, world_size)
    left join advised_rows using (setting_id, series, world_size)
    join colours on colours.setting_id = fastest.setting_id
        and colours.layout = coalesce(advised_layout, fastest.layout)
    join own_baselines as own
        on own.setting_id = fastest.setting_id and own.series = fastest.series
    left join observed_baselines as observed on observed.setting_id = fastest.setting_id
)
select
    with_baselines.* exclude (lines, beside_observed, baseline_rate_per_gpu, baseline_size),
    case when lag(advised_layout) over sizes is distinct from advised_layout then lines end
        as label,
    runner_up.layout as runner_up_layout,
    runner_up.layout_name as runner_up_layout_name,
    runner_up.stack_fingerprint as runner_up_stack_fingerprint,
    runner_up.tokens_per_s as runner_up_tokens_per_s,
    runner_up.tokens_per_s_low as runner_up_tokens_per_s_low,
    runner_up.tokens_per_s_high as runner_up_tokens_per_s_high,
    runner_up.within_noise as tied,
    ties.tied_layouts,
    baseline_rate_per_gpu * world_size as ideal_tokens_per_s,
    with_baselines.tokens_per_s / (baseline_rate_per_gpu * baseline_size) as speed_up,
    with_baselines.tokens_per_s / ideal_tokens_per_s as efficiency,
    with_baselines.tokens_per_step / with_baselines.energy_j as tokens_per_joule,
    with_baselines.mean_power_w / world_size as power_per_gpu_w,
    shares.slowest_share
from with_baselines
join (
    select
        setting_id, series, world_size, stack_fingerprint,
        if(count(*) > 1, min(share_of_best), null) as slowest_share
    from ranking
    group by setting_id, series, world_size, stack_fingerprint
) as shares using (setting_id, series, world_size, stack_fingerprint)
join ties using (setting_id, series, world_size)
left join runner_up using (setting_id, series, world_size)
window sizes as (partition by setting_id, series order by world_size)
order by setting_id, series, world_size
