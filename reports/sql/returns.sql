-- Grain: one row per setting, series and step between neighbouring sizes, each at its best layout.
-- Needs: best, settings, resampled
-- marginal_tokens_per_s: tokens / s per added GPU. share: that, over tokens / s per GPU at the
-- smallest size that ran. efficiency, speed_up: of the larger size, against the smallest.
-- elasticity: d log(tokens_per_s) / d log(world_size), 1 is perfect.
-- per_watt: tokens / s per added watt, that is tokens / J; power from the energy measured at both
-- ends (watt_from 'measured') or, for lack of it, the data sheet's of every GPU ('tdp').
-- per_usd: tokens per added dollar. _share: over the same at the smallest size.
-- step_return: what the step bought, as a share of what it cost: the growth of tokens_per_s over the
-- growth in GPUs; 1 where twice the GPUs train twice as fast, 0 where they train no faster.
-- returned: tokens_per_s at the larger size over that at the smaller, as a share of the growth in
-- GPUs. pays: returned >= the study's knee share, compounded per doubling.
-- Intervals: percentile bootstrap over repeats and steps where both ends kept them
-- (interval_from 'bootstrap'), else first-order propagation of the ends' intervals, taken as
-- independent ('propagated'); that of the share includes the yardstick's own. What a prediction is wrong
-- about at every size alike cancels in all but marginal_tokens_per_s and what is made of it: there the
-- ends of the interval are those of its own error and of its size's.
with ends as (
    select
        setting_id,
        series,
        world_size as n1,
        -- ends of what two sizes do not share, as factors of the rate
        if(predicted_own_sigma is null or predicted_size_sigma is null,
            tokens_per_s_low / tokens_per_s,
            exp(-getvariable('z80') * sqrt(predicted_own_sigma ** 2 + predicted_size_sigma ** 2))
        ) as a1,
        if(predicted_own_sigma is null or predicted_size_sigma is null,
            tokens_per_s_high / tokens_per_s,
            exp(getvariable('z80') * sqrt(predicted_own_sigma ** 2 + predicted_size_sigma ** 2))
        ) as b1,
        lag(a1) over sizes as a0,
        lag(b1) over sizes as b0,
        first_value(a1) over sizes as a,
        first_value(b1) over sizes as b,
        layout as to_layout,
        stack_fingerprint as to_stack,
        tokens_per_s as t1,
        tokens_per_s_low as l1,
        tokens_per_s_high as h1,
        energy_j / step_time_s as w1,
        speed_up,
        efficiency,
        drawn,
        lag(world_size) over sizes as n0,
        lag(layout) over sizes as from_layout,
        lag(stack_fingerprint) over sizes as from_stack,
        lag(tokens_per_s) over sizes as t0,
        lag(tokens_per_s_low) over sizes as l0,
        lag(tokens_per_s_high) over sizes as h0,
        lag(energy_j / step_time_s) over sizes as w0,
        first_value(world_size) over sizes as n,
        first_value(tokens_per_s) over sizes as t,
        first_value(energy_j / step_time_s) over sizes as w
    from best
    window sizes as (partition by setting_id, series order by world_size)
    qualify n0 is not null
),
steps as (
    select
        ends.*,
        settings.usd_per_gpu_hour,
        (t1 - t0) / (n1 - n0) as marginal,
        t / n as yardstick,
        marginal / yardstick as share,
        (t1 - t0) / t as gain,  -- what one relative error of the yardstick does to the share
        if(n0 = n, 1 + gain, 1) as weight0,
        if(n0 = n, 0, gain) as weight,
        w is not null and w0 is not null and w1 is not null as metered,
        if(metered, w1 - w0, (n1 - n0) * settings.gpu_tdp_w) as added_w,
        if(metered, t / w, yardstick / settings.gpu_tdp_w) as yardstick_per_watt,
        sqrt((1 - a1) ** 2 + (b0 - 1) ** 2) as fall,  -- of ln(t1 / t0), to the ends of its interval
        sqrt((b1 - 1) ** 2 + (1 - a0) ** 2) as rise,
        sqrt((t1 - l1) ** 2 + (h0 - t0) ** 2) / (n1 - n0) as below,
        sqrt((h1 - t1) ** 2 + (t0 - l0) ** 2) / (n1 - n0) as above
    from ends
    join settings using (setting_id)
),
bounded as (
    select
        steps.*,
        coalesce(resampled.marginal_low, marginal - below) as marginal_low,
        coalesce(resampled.marginal_high, marginal + above) as marginal_high,
        coalesce(resampled.share_low, share - sqrt(
            (t1 * (1 - a1)) ** 2 + (weight0 * t0 * (b0 - 1)) ** 2
            + (weight * t * if(weight >= 0, b - 1, 1 - a)) ** 2
        ) / (n1 - n0) / yardstick) as share_low,
        coalesce(resampled.share_high, share + sqrt(
            (t1 * (b1 - 1)) ** 2 + (weight0 * t0 * (1 - a0)) ** 2
            + (weight * t * if(weight >= 0, 1 - a, b - 1)) ** 2
        ) / (n1 - n0) / yardstick) as share_high,
        coalesce(resampled.elasticity_low, (ln(t1 / t0) - fall) / ln(n1 / n0)) as elasticity_low,
        coalesce(resampled.elasticity_high, (ln(t1 / t0) + rise) / ln(n1 / n0)) as elasticity_high,
        coalesce(
            resampled.efficiency_low, efficiency * exp(-sqrt((1 - a1) ** 2 + (b - 1) ** 2))
        ) as efficiency_low,
        coalesce(
            resampled.efficiency_high, efficiency * exp(sqrt((b1 - 1) ** 2 + (1 - a) ** 2))
        ) as efficiency_high,
        case
            when resampled.marginal_low is not null then 'bootstrap'
            when below is not null then 'propagated'
        end as interval_from
    from steps
    left join resampled
        on resampled.setting_id = steps.setting_id and resampled.series = steps.series
        and resampled.from_world_size = n0 and resampled.to_world_size = n1
)
select
    setting_id,
    series,
    n0 as from_world_size,
    n1 as to_world_size,
    from_layout,
    to_layout,
    from_stack = to_stack as same_stack,
    marginal as marginal_tokens_per_s,
    marginal_low,
    marginal_high,
    yardstick as yardstick_tokens_per_s_per_gpu,
    share,
    share_low,
    share_high,
    interval_from,
    ln(t1 / t0) / ln(n1 / n0) as elasticity,
    elasticity_low,
    elasticity_high,
    speed_up,
    efficiency,
    efficiency_low,
    efficiency_high,
    (t1 / t0 - 1) / (n1 / n0 - 1) as step_return,
    ((n1 / n0) ** elasticity_low - 1) / (n1 / n0 - 1) as step_return_low,
    ((n1 / n0) ** elasticity_high - 1) / (n1 / n0 - 1) as step_return_high,
    case when added_w > 0 then (t1 - t0) / added_w end as per_watt,
    case when added_w > 0 then marginal_low * (n1 - n0) / added_w end as per_watt_low,
    case when added_w > 0 then marginal_high * (n1 - n0) / added_w end as per_watt_high,
    yardstick_per_watt,
    case when added_w > 0 then if(metered, 'measured', 'tdp') end as watt_from,
    marginal * 3600 / usd_per_gpu_hour as per_usd,
    marginal_low * 3600 / usd_per_gpu_hour as per_usd_low,
    marginal_high * 3600 / usd_per_gpu_hour as per_usd_high,
    yardstick * 3600 / usd_per_gpu_hour as yardstick_per_usd,
    t1 / t0 / (n1 / n0) as returned,
    returned >= (select knee_share from study.choices) ** log2(n1 / n0) as pays,
    drawn
from bounded
order by setting_id, series, from_world_size
