-- Grain: one row per comparison group and step between neighbouring sizes, each at its advised layout.
-- What adding GPUs returned. All _low and _high columns are ends of the interval of `level`: 0.95, or
-- 0.80 if an end is predicted. An error that a prediction makes at all sizes alike cancels.
-- faster: tokens_per_s after over before.   step_return: growth of tokens_per_s over growth in GPUs:
-- 1 if twice the GPUs train twice as fast, 0 if they train no faster.
-- returned: `faster` over the growth in GPUs.   pays: returned >= the study's knee share, compounded
-- per doubling; pays_probability: how likely that is.
-- marginal_tokens_per_s: tokens/s per added GPU.   share: that over tokens/s per GPU at the smallest
-- size.   elasticity: d log(tokens_per_s) / d log(world_size), 1 is perfect.
-- efficiency: of the larger size against the smallest.
-- per_watt: tokens/s per added watt, which is tokens/J; the power is measured at both ends and at the
-- smallest size (watt_from 'measured') or the data sheet's of every GPU ('tdp').   per_usd: tokens
-- per added dollar.   yardstick_*: the same at the smallest size.
with with_power as (
    select
        drawn_steps.*, comparison_groups.usd_per_gpu_hour,
        before.source as from_source, after.source as to_source,
        before.layout as from_layout, after.layout as to_layout,
        before.stack_fingerprint = after.stack_fingerprint as same_stack,
        before.energy_j / before.step_time_s as w0,
        after.energy_j / after.step_time_s as w1,
        first_value(w0) over (partition by drawn_steps.group_id order by from_world_size) as w,
        first_value(from_world_size) over (
            partition by drawn_steps.group_id order by from_world_size
        ) as n,
        w0 is not null and w1 is not null and w is not null as metered,
        (to_world_size - from_world_size) / if(
            metered, w1 - w0, (to_world_size - from_world_size) * gpu_tdp_w
        ) as gpus_per_added_w,
        (select knee_share from study.options) as knee_share
    from drawn_steps
    join comparison_groups using (group_id)
    join estimates as before on before.cell_id = from_cell
    join estimates as after on after.cell_id = to_cell
)
select
    group_id, if(to_source = 'predicted', to_source, from_source) as source,
    from_world_size, to_world_size, level, from_layout, to_layout, same_stack, faster, faster_low, faster_high, step_return, step_return_low,
    step_return_high, marginal_tokens_per_s, marginal_tokens_per_s_low, marginal_tokens_per_s_high,
    yardstick_tokens_per_s_per_gpu, share, share_low, share_high, elasticity, elasticity_low,
    elasticity_high, efficiency, efficiency_low, efficiency_high,
    faster * from_world_size / to_world_size as returned,
    returned >= knee_share ** log2(to_world_size / from_world_size) as pays,
    pays_probability,
    if(gpus_per_added_w > 0, marginal_tokens_per_s * gpus_per_added_w, null) as per_watt,
    if(gpus_per_added_w > 0, marginal_tokens_per_s_low * gpus_per_added_w, null) as per_watt_low,
    if(gpus_per_added_w > 0, marginal_tokens_per_s_high * gpus_per_added_w, null) as per_watt_high,
    yardstick_tokens_per_s_per_gpu * if(metered, n / w, gpus_per_added_w) as yardstick_per_watt,
    if(gpus_per_added_w > 0, if(metered, 'measured', 'tdp'), null) as watt_from,
    marginal_tokens_per_s * 3600 / usd_per_gpu_hour as per_usd,
    marginal_tokens_per_s_low * 3600 / usd_per_gpu_hour as per_usd_low,
    marginal_tokens_per_s_high * 3600 / usd_per_gpu_hour as per_usd_high,
    yardstick_tokens_per_s_per_gpu * 3600 / usd_per_gpu_hour as yardstick_per_usd
from with_power
order by group_id, from_world_size
