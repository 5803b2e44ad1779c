-- Grain: one row per setting, series, world_size, layout and software stack; its repeats are pooled.
-- Needs: measurements, pooled_runs, names
-- Rates are medians over the repeats that ran. step_time_s, mfu and FLOP/s are those of the median
-- rate.
-- Ends are those of the 95 % interval (extended: 80 %): of a single run its own, which leaves out what
-- differs between runs; of repeats Student's t with a spread pooled over the layouts (`pooled_runs`).
-- outcome: ok if a repeat ran, else the commonest failure.   peak_memory_bytes: of the largest
-- repeat.
with failures as (
    select
        setting_id, series, world_size, layout, stack_fingerprint,
        mode(outcome order by outcome) as outcome,
        any_value(error_message order by repeat) as error_message
    from measurements
    where outcome != 'ok'
    group by setting_id, series, world_size, layout, stack_fingerprint
)
select
    pooled_runs.* exclude (
        counts, log_means, squares, error_squares, repeat_sigma,
        model_flop_per_s_per_gpu_of_rate, hardware_flop_per_s_per_gpu_of_rate, mfu_of_rate,
        hfu_of_rate
    ),
    if(ok_runs > 0, 'ok', failures.outcome) as outcome,
    failures.error_message,
    tokens_per_s / world_size as tokens_per_s_per_gpu,
    tokens_per_step / tokens_per_s as step_time_s,
    tokens_per_step / tokens_per_s_high as step_time_low_s,
    tokens_per_step / tokens_per_s_low as step_time_high_s,
    tokens_per_s * model_flop_per_s_per_gpu_of_rate as model_flop_per_s_per_gpu,
    tokens_per_s * hardware_flop_per_s_per_gpu_of_rate as hardware_flop_per_s_per_gpu,
    tokens_per_s * mfu_of_rate as mfu,
    tokens_per_s * hfu_of_rate as hfu,
    names.* exclude (setting_id, layout)
from pooled_runs
left join failures using (setting_id, series, world_size, layout, stack_fingerprint)
join names using (setting_id, layout)
order by setting_id, series, world_size, tokens_per_s desc nulls last, layout, stack_fingerprint
