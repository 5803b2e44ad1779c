-- Grain: one row per setting, series, world_size, layout and software stack, over all its repeats.
-- Needs: measurements
-- Every aggregate that later tables need of a layout, in one pass over what may be a million rows.
-- *_of_rate: the value per token/s; times tokens_per_s it gives the value.
-- counts, log_means, squares, error_squares: of ln(step_time_s), see scaling/analyse/being_best.py.
-- A single run without an interval may be a single step: its error is that of the unstated floor.
-- repeat_sigma: see `noise`.
-- tokens_per_s_low, _high: of a single run its own interval. Of repeats Student's t about their
-- geometric mean: the variance of one run is (w repeat_sigma^2 + squares) / (w + runs - 1), with w the
-- degrees of freedom of the other layouts, four at most, and at least what the runs state of their
-- own errors.
with runs as (
    select
        setting_id, series, world_size, layout, stack_fingerprint,
        any_value(dp) as dp,
        any_value(global_batch_size) as global_batch_size,
        any_value(gradient_accumulation_steps) as gradient_accumulation_steps,
        count(*) as runs,
        count(*) filter (where outcome = 'ok') as ok_runs,
        median(tokens_per_s) as tokens_per_s,
        min(tokens_per_s_low) as run_low,
        max(tokens_per_s_high) as run_high,
        min(tokens_per_s) as slowest_repeat_tokens_per_s,
        max(tokens_per_s) as fastest_repeat_tokens_per_s,
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
        median(idle_s) filter (where outcome = 'ok') as idle_s,
        count(step_time_s)::double as counts,
        avg(ln(step_time_s)) as log_means,
        var_pop(ln(step_time_s)) * counts as squares,
        coalesce(
            sum((
                ln(step_time_high_s / step_time_low_s) / 2
                    / if(series = 'extended', getvariable('z80'), getvariable('z95'))
            ) ** 2),
            if(counts > 1, 0, (ln(1 + getvariable('unstated_floor')) / sqrt(2) / getvariable('z95')) ** 2)
        ) as error_squares
    from measurements
    group by setting_id, series, world_size, layout, stack_fingerprint
),
spreads as (
    select
        setting_id, series,
        sum(counts - 1) as degrees,
        median(sqrt(squares / (counts - 1)) / (1 - 2 / 9 / (counts - 1)) ** 1.5) as repeat_sigma
    from runs
    where counts > 1
    group by setting_id, series
),
with_errors as (
    select
        runs.*, repeat_sigma,
        counts > 1 as repeated,
        least(degrees - (counts - 1), getvariable('repeat_weight')) as weight,
        weight + counts - 1 as freedom,
        if(series = 'extended', getvariable('t80'), getvariable('t95')) as quantiles,
        quantiles[least(freedom, len(quantiles))::bigint] * sqrt(greatest(
            (weight * repeat_sigma ** 2 + squares) / freedom, error_squares / counts
        ) / counts) as half
    from runs
    left join spreads using (setting_id, series)
)
select
    * exclude (run_low, run_high, repeated, weight, freedom, quantiles, half),
    if(repeated, least(tokens_per_s, tokens_per_step / exp(log_means + half)), run_low)
        as tokens_per_s_low,
    if(repeated, greatest(tokens_per_s, tokens_per_step / exp(log_means - half)), run_high)
        as tokens_per_s_high
from with_errors
