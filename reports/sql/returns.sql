-- Grain: one row per setting, series and step between neighbouring sizes, each at its best layout.
-- Needs: best, settings, resampled
-- What adding GPUs returned. All _low and _high columns are ends of an interval.
-- marginal_tokens_per_s: tokens/s per added GPU.   share: that over tokens/s per GPU at the smallest
-- size.
-- efficiency, speed_up: of the larger size against the smallest.
-- elasticity: d log(tokens_per_s) / d log(world_size), 1 is perfect.
-- per_watt: tokens/s per added watt, which is tokens/J; the power is measured at both ends and at the
-- smallest size (watt_from 'measured') or the data sheet's of every GPU ('tdp').   per_usd: tokens per added
-- dollar.
-- yardstick_*: the same at the smallest size.
-- step_return: growth of tokens_per_s over growth in GPUs: 1 if twice the GPUs train twice as fast,
-- 0 if they train no faster.
-- returned: (tokens_per_s at the larger size over that at the smaller) / (ratio of the sizes).
-- pays: returned >= the study's knee share, compounded per doubling.
-- interval_from: 'bootstrap' over repeats and steps if both ends kept them, else 'propagated' to
-- first order from the intervals of the ends, taken as independent; that of the share includes the
-- yardstick's own. An error that a prediction makes at all sizes alike cancels, except in
-- marginal_tokens_per_s and what is made of it. There each end has its whole interval.
with rates as (
    select
        setting_id, series, world_size, layout, stack_fingerprint, tokens_per_s, tokens_per_s_low,
        tokens_per_s_high, energy_j / step_time_s as power_w, speed_up, efficiency, drawn,
        -- interval of the rate as factors; of a prediction that states its parts, without the error
        -- that all sizes share
        sqrt(predicted_own_sigma ** 2 + predicted_size_sigma ** 2) as sigma,
        coalesce(exp(-getvariable('z80') * sigma), tokens_per_s_low / tokens_per_s) as low_factor,
        coalesce(exp(getvariable('z80') * sigma), tokens_per_s_high / tokens_per_s) as high_factor
    from best
),
-- n0, n1, n: sizes before and after the step, and the smallest one; the other columns likewise:
-- t tokens/s, l and h its interval, a and b the factors, w watts
steps as (
    select
        setting_id, series, speed_up, efficiency,
        drawn and (series = 'predicted' or lag(drawn) over sizes) as drawn,
        lag(layout) over sizes as from_layout,
        layout as to_layout,
        lag(stack_fingerprint) over sizes as from_stack,
        stack_fingerprint as to_stack,
        lag(world_size) over sizes as n0,
        world_size as n1,
        first_value(world_size) over sizes as n,
        lag(tokens_per_s) over sizes as t0,
        tokens_per_s as t1,
        first_value(tokens_per_s) over sizes as t,
        lag(tokens_per_s_low) over sizes as l0,
        tokens_per_s_low as l1,
        lag(tokens_per_s_high) over sizes as h0,
        tokens_per_s_high as h1,
        lag(low_factor) over sizes as a0,
        low_factor as a1,
        first_value(low_factor) over sizes as a,
        lag(high_factor) over sizes as b0,
        high_factor as b1,
        first_value(high_factor) over sizes as b,
        lag(power_w) over sizes as w0,
        power_w as w1,
        first_value(power_w) over sizes as w
    from rates
    window sizes as (partition by setting_id, series order by world_size)
    qualify n0 is not null
),
returned_by_steps as (
    select
        steps.*,
        settings.usd_per_gpu_hour,
        (t1 - t0) / (n1 - n0) as marginal,
        t / n as yardstick,
        marginal / yardstick as share,
        (t1 - t0) / t as gain,  -- change of the share per relative error of the yardstick
        if(n0 = n, 1 + gain, 1) as weight0,
        if(n0 = n, 0, gain) as weight,
        w is not null and w0 is not null and w1 is not null as metered,
        if(metered, w1 - w0, (n1 - n0) * settings.gpu_tdp_w) as added_w,
        if(metered, t / w, yardstick / settings.gpu_tdp_w) as yardstick_per_watt,
        -- distances to the ends of the interval, of ln(t1 / t0) and of the marginal rate
        sqrt((1 - a1) ** 2 + (b0 - 1) ** 2) as log_below,
        sqrt((b1 - 1) ** 2 + (1 - a0) ** 2) as log_above,
        sqrt((t1 - l1) ** 2 + (h0 - t0) ** 2) / (n1 - n0) as below,
        sqrt((h1 - t1) ** 2 + (t0 - l0) ** 2) / (n1 - n0) as above
    from steps
    join settings using (setting_id)
),
with_intervals as (
    select
        returned_by_steps.*,
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
        coalesce(
            resampled.elasticity_low, (ln(t1 / t0) - log_below) / ln(n1 / n0)
        ) as elasticity_low,
        coalesce(
            resampled.elasticity_high, (ln(t1 / t0) + log_above) / ln(n1 / n0)
        ) as elasticity_high,
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
    from returned_by_steps
    left join resampled
        on resampled.setting_id = returned_by_steps.setting_id
        and resampled.series = returned_by_steps.series
        and resampled.from_world_size = n0 and resampled.to_world_size = n1
)
select
    setting_id, series,
    n0 as from_world_size,
    n1 as to_world_size,
    from_layout, to_layout,
    from_stack = to_stack as same_stack,
    marginal as marginal_tokens_per_s,
    marginal_low, marginal_high,
    yardstick as yardstick_tokens_per_s_per_gpu,
    share, share_low, share_high, interval_from,
    ln(t1 / t0) / ln(n1 / n0) as elasticity,
    elasticity_low, elasticity_high, speed_up, efficiency, efficiency_low, efficiency_high,
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
    returned >= (select knee_share from study.options) ** log2(n1 / n0) as pays,
    drawn
from with_intervals
order by setting_id, series, from_world_size
