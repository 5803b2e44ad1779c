-- Grain: one row per setting, series, world_size, layout and software stack; repeats are joined.
-- Needs: measurements, names
-- Rates are medians over the repeats that ran; step_time_s is the step of the median rate.
-- Intervals are the hull of the repeats' 95 % intervals, so what differs between runs is inside.
-- outcome: ok if one repeat ran, else the commonest failure. peak_memory_bytes: largest repeat.
with joined as (
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
        case
            when count(*) filter (where outcome = 'ok') > 0 then 'ok'
            else mode(outcome order by outcome)
        end as outcome,
        any_value(error_message order by repeat) filter (where outcome != 'ok') as error_message,
        median(tokens_per_s) as tokens_per_s,
        min(tokens_per_s_low) as tokens_per_s_low,
        max(tokens_per_s_high) as tokens_per_s_high,
        min(tokens_per_s) as slowest_repeat_tokens_per_s,
        max(tokens_per_s) as fastest_repeat_tokens_per_s,
        median(tokens_per_s_per_gpu) as tokens_per_s_per_gpu,
        any_value(tokens_per_step) / median(tokens_per_s) as step_time_s,
        min(step_time_low_s) as step_time_low_s,
        max(step_time_high_s) as step_time_high_s,
        median(model_flop_per_s_per_gpu) as model_flop_per_s_per_gpu,
        median(hardware_flop_per_s_per_gpu) as hardware_flop_per_s_per_gpu,
        median(mfu) as mfu,
        median(hfu) as hfu,
        max(peak_memory_bytes) filter (where outcome = 'ok') as peak_memory_bytes,
        max(predicted_memory_bytes) as predicted_memory_bytes,
        any_value(memory_meter) as memory_meter,
        median(energy_j) filter (where outcome = 'ok') as energy_j,
        median(mean_power_w) filter (where outcome = 'ok') as mean_power_w,
        any_value(tokens_per_step) as tokens_per_step,
        median(compute_s) filter (where outcome = 'ok') as compute_s,
        median(comm_s) filter (where outcome = 'ok') as comm_s,
        median(exposed_comm_s) filter (where outcome = 'ok') as exposed_comm_s,
        median(idle_s) filter (where outcome = 'ok') as idle_s
    from measurements
    group by setting_id, series, world_size, layout, stack_fingerprint
)
select *
from joined
join names using (setting_id, layout)
order by setting_id, series, world_size, tokens_per_s desc nulls last, layout, stack_fingerprint
