-- Grain: one row per setting, series, world_size, layout and software stack; repeats are joined.
-- Needs: measurements, names
-- Rates are medians over the repeats that ran, mfu and FLOP/s those of the median rate (the FLOPs
-- of a token and the peak are the same for all); step_time_s is the step of the median rate.
-- Intervals are the hull of the repeats' 95 % intervals, so what differs between runs is inside; with
-- one repeat it is the interval of one run, and knows nothing of others.
-- outcome: ok if one repeat ran, else the commonest failure. peak_memory_bytes: largest repeat.
with failed as (
    select
        setting_id, series, world_size, layout, stack_fingerprint,
        mode(outcome order by outcome) as outcome,
        any_value(error_message order by repeat) as error_message
    from measurements
    where outcome != 'ok'
    group by setting_id, series, world_size, layout, stack_fingerprint
),
joined as (
    select
        setting_id,
        series,
        world_size,
        layout,
        stack_fingerprint,
        any_value(dp) as dp,
        any_value(global_batch_size) as global_batch_size,
        any_value(gradient_accumulation_steps) as gradient_accumulation_steps,
        count(*) as runs,
        count(*) filter (where outcome = 'ok') as ok_runs,
        median(tokens_per_s) as tokens_per_s,
        min(tokens_per_s_low) as tokens_per_s_low,
        max(tokens_per_s_high) as tokens_per_s_high,
        min(tokens_per_s) as slowest_repeat_tokens_per_s,
        max(tokens_per_s) as fastest_repeat_tokens_per_s,
        min(step_time_low_s) as step_time_low_s,
        max(step_time_high_s) as step_time_high_s,
        any_value(model_flop_per_s_per_gpu / tokens_per_s) as model_flop_per_s_per_gpu_of_rate,
        any_value(hardware_flop_per_s_per_gpu / tokens_per_s) as hardware_flop_per_s_per_gpu_of_rate,
        any_value(mfu / tokens_per_s) as mfu_of_rate,
        any_value(hfu / tokens_per_s) as hfu_of_rate,
        max(peak_memory_bytes) filter (where outcome = 'ok') as peak_memory_bytes,
        max(predicted_memory_bytes) as predicted_memory_bytes,
        any_value(memory_meter) as memory_meter,
        median(energy_j) filter (where outcome = 'ok') as energy_j,
        median(mean_power_w) filter (where outcome = 'ok') as mean_power_w,
        max(predicted_own_sigma) as predicted_own_sigma,
        max(predicted_size_sigma) as predicted_size_sigma,
        any_value(tokens_per_step) as tokens_per_step,
        median(compute_s) filter (where outcome = 'ok') as compute_s,
        median(comm_s) filter (where outcome = 'ok') as comm_s,
        median(exposed_comm_s) filter (where outcome = 'ok') as exposed_comm_s,
        median(idle_s) filter (where outcome = 'ok') as idle_s
    from measurements
    group by setting_id, series, world_size, layout, stack_fingerprint
)
select
    joined.* exclude (
        model_flop_per_s_per_gpu_of_rate, hardware_flop_per_s_per_gpu_of_rate, mfu_of_rate,
        hfu_of_rate
    ),
    if(ok_runs > 0, 'ok', failed.outcome) as outcome,
    failed.error_message,
    tokens_per_s / world_size as tokens_per_s_per_gpu,
    tokens_per_step / tokens_per_s as step_time_s,
    tokens_per_s * model_flop_per_s_per_gpu_of_rate as model_flop_per_s_per_gpu,
    tokens_per_s * hardware_flop_per_s_per_gpu_of_rate as hardware_flop_per_s_per_gpu,
    tokens_per_s * mfu_of_rate as mfu,
    tokens_per_s * hfu_of_rate as hfu,
    names.* exclude (setting_id, layout)
from joined
left join failed using (setting_id, series, world_size, layout, stack_fingerprint)
join names using (setting_id, layout)
order by setting_id, series, world_size, tokens_per_s desc nulls last, layout, stack_fingerprint
