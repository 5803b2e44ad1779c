-- Grain: one row per comparison group and size at which a layout can be advised: its own numbers.
-- Columns of `estimates` are those of the advised layout.
-- close_layouts: with a probability above 5 % of being the best, 1 where one is clearly the best;
-- close_names: the likeliest first.   fastest_layout_name: with the highest mean rate.
-- runner_up_*: the fastest candidate besides the advised layout; runner_up_share: of its rate.
-- next_points, next_gpu_hours: what to measure next, if the size is too close to call.
-- tried, failed: layouts.
-- speed_up, efficiency: against the advised layout of the smallest size, of the rate and of the
-- rate per GPU.   ideal_tokens_per_s: at the rate per GPU of the smallest size.
-- hours_per_token: wall clock.   joules_from: 'measured', or 'tdp': every GPU at the data sheet's power
-- all the time, without the rest of the node.   power_per_gpu_w: mean watts of one device.
-- knee_probability: that the knee is here, the largest size up to which every step paid.
with of_sizes as (
    select
        group_id, world_size,
        count(*) filter (where candidate) as candidates,
        greatest(1, count(*) filter (where close)) as close_layouts,
        list(layout_name order by p_best desc, place) filter (where close) as close_names,
        arg_max(layout_name, ln_rate) filter (where candidate) as fastest_layout_name,
        arg_max(layout_name, ln_rate) filter (where candidate and not advised)
            as runner_up_layout_name,
        max(tokens_per_s) filter (where candidate and not advised) as runner_up_tokens_per_s,
        count(*) filter (where measure_next) as next_points,
        sum(run_gpu_hours) filter (where measure_next) as next_gpu_hours,
        count(*) filter (where class < 3) as tried,
        count(*) filter (where class < 3 and outcome != 'ok') as failed
    from estimates
    where speaks
    group by group_id, world_size
),
advised as (
    select estimates.*, drawn_sizes.* exclude (group_id, world_size)
    from estimates
    join drawn_sizes using (group_id, world_size)
    where advised
)
select
    advised.* exclude (
        speaks, leads, candidate, close, advised, position, place, outcome, error_message, ok_runs,
        measure_next
    ),
    of_sizes.* exclude (group_id, world_size, runner_up_tokens_per_s),
    runner_up_tokens_per_s / tokens_per_s as runner_up_share,
    first_value(tokens_per_s_per_gpu) over by_size * world_size as ideal_tokens_per_s,
    tokens_per_s / first_value(tokens_per_s) over by_size as speed_up,
    1 / tokens_per_s / 3600 as hours_per_token,
    1 / tokens_per_s_high / 3600 as hours_per_token_low,
    1 / tokens_per_s_low / 3600 as hours_per_token_high,
    hours_per_token * world_size as gpu_hours_per_token,
    hours_per_token_low * world_size as gpu_hours_per_token_low,
    hours_per_token_high * world_size as gpu_hours_per_token_high,
    gpu_hours_per_token * usd_per_gpu_hour as usd_per_token,
    gpu_hours_per_token_low * usd_per_gpu_hour as usd_per_token_low,
    gpu_hours_per_token_high * usd_per_gpu_hour as usd_per_token_high,
    coalesce(energy_j / tokens_per_step, gpu_hours_per_token * 3600 * gpu_tdp_w)
        as joules_per_token,
    case
        when energy_j is not null then 'measured'
        when gpu_tdp_w is not null then 'tdp'
    end as joules_from,
    tokens_per_step / energy_j as tokens_per_joule,
    mean_power_w / world_size as power_per_gpu_w
from advised
join of_sizes using (group_id, world_size)
join comparison_groups using (group_id)
window by_size as (partition by group_id order by world_size)
order by group_id, world_size
