-- Grain: one row per setting, series and step between neighbouring sizes, each at its best layout.
-- Needs: best
-- marginal_tokens_per_s: tokens / s per added GPU. share: that, over tokens / s per GPU at the
-- smallest size that ran. efficiency, speed_up: of the larger size, against the smallest.
-- Intervals: first-order propagation of the endpoints' 95 % intervals, taken as independent; that
-- of the share includes the yardstick's own interval.
with ends as (
    select
        setting_id,
        series,
        world_size as n1,
        layout as to_layout,
        stack_fingerprint as to_stack,
        tokens_per_s as t1,
        tokens_per_s_low as l1,
        tokens_per_s_high as h1,
        speed_up,
        efficiency,
        lag(world_size) over sizes as n0,
        lag(layout) over sizes as from_layout,
        lag(stack_fingerprint) over sizes as from_stack,
        lag(tokens_per_s) over sizes as t0,
        lag(tokens_per_s_low) over sizes as l0,
        lag(tokens_per_s_high) over sizes as h0,
        first_value(world_size) over sizes as n,
        first_value(tokens_per_s) over sizes as t,
        first_value(tokens_per_s_low) over sizes as l,
        first_value(tokens_per_s_high) over sizes as h
    from best
    window sizes as (partition by setting_id, series order by world_size)
    qualify n0 is not null
),
steps as (
    select
        *,
        (t1 - t0) / (n1 - n0) as marginal,
        t / n as yardstick,
        marginal / yardstick as share,
        (t1 - t0) / t as gain,  -- what one relative error of the yardstick does to the share
        if(n0 = n, 1 + gain, 1) as weight0,
        if(n0 = n, 0, gain) as weight
    from ends
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
    marginal - sqrt((t1 - l1) ** 2 + (h0 - t0) ** 2) / (n1 - n0) as marginal_low,
    marginal + sqrt((h1 - t1) ** 2 + (t0 - l0) ** 2) / (n1 - n0) as marginal_high,
    yardstick as yardstick_tokens_per_s_per_gpu,
    share,
    share - sqrt(
        (t1 - l1) ** 2 + (weight0 * (h0 - t0)) ** 2
        + (weight * if(weight >= 0, h - t, t - l)) ** 2
    ) / (n1 - n0) / yardstick as share_low,
    share + sqrt(
        (h1 - t1) ** 2 + (weight0 * (t0 - l0)) ** 2
        + (weight * if(weight >= 0, t - l, h - t)) ** 2
    ) / (n1 - n0) / yardstick as share_high,
    speed_up,
    efficiency
from steps
order by setting_id, series, from_world_size
