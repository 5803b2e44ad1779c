-- Grain: one row per point and series: its last attempt here, what others published, a prediction.
-- Needs: planned, losses
-- series: measured | extended | published | predicted; values of different series are never mixed.
-- extended: a full step derived from short ones, of a point whose steps were all short, or
-- (beside_measured) of one that ran full ones too.
-- tokens_per_s: tokens / s, the whole job; _low and _high from the interval of the step time, which
-- is 95 % of a measured one, of this one run, and 80 % of an extended or a predicted one.
-- mfu, hfu: ratios; null where no peak is published. All null unless the outcome is ok; a predicted
-- outcome is ok or oom.
-- losses_agree: with the other layouts of the same training, see `losses`; a row whose losses do not
-- has the outcome error here, and so no rate: a step of another training is no faster step of this.
-- model_flop_per_s_per_gpu: FLOP/s the model got out of one GPU, recomputation excluded.
-- What the layout chooses on every axis stands in `statistics` and `layouts`.
-- predicted_own_sigma, predicted_size_sigma: standard deviations of ln(step time), of predictions: the
-- part of the error that no other layout of the size shares, and that which all layouts of a size do.
-- step_time_p95_s: of the measured steps, 19 of 20 took no longer; null of others' rows and predictions.
-- hosts: names of the nodes that it ran on; null of predictions.
-- peak_memory_bytes: measured only.   predicted_memory_bytes: predicted only.
with kinds as (  -- what each row says, and once more what its short steps say beside the full ones
    select
        *,
        false as beside_measured,
        step_time_kind is not distinct from 'extended' as derived
    from study.latest_rows
    union all
    select *, true, true
    from study.latest_rows
    where step_time_kind = 'measured' and extended_step_time_s is not null
),
observed as (
    select
        planned.setting_id, planned.layout, planned.repeat, planned.world_size, planned.dp,
        planned.global_batch_size, planned.gradient_accumulation_steps,
        point_id, if(derived, 'extended', rows.series) as series, beside_measured, attempt,
        if(agrees is false and rows.series = 'measured', 'error', outcome) as outcome,
        if(agrees is false and rows.series = 'measured', format(
            'its losses differ by {:.2g} % at step {} from the median of {} layouts of this '
            'training, of which {:g} % is rounding: it may not train the same',
            100 * largest_gap, at_step, layouts, 100 * tolerance
        ), error_message) as error_message,
        if(rows.series = 'measured', agrees, null) as losses_agree,
        if(derived, extended_step_time_s, step_time_s) as step_time_s,
        if(derived, extended_low_s, step_time_low_s) as step_time_low_s,
        if(derived, extended_high_s, step_time_high_s) as step_time_high_s,
        if(derived, null, list_aggregate(step_times_s, 'quantile_cont', 0.95)) as step_time_p95_s,
        if(derived, null, compute_s) as compute_s,
        if(derived, null, comm_s) as comm_s,
        if(derived, null, exposed_comm_s) as exposed_comm_s,
        if(derived, null, idle_s) as idle_s,
        peak_memory_bytes, null::bigint as predicted_memory_bytes, memory_meter,
        if(derived, null, energy_j) as energy_j,
        if(derived, null, mean_power_w) as mean_power_w,
        startup_s,
        hosts,
        duration_s, stack_fingerprint, started_at, rows.tokens_per_step, rows.model_flops_per_token,
        rows.hardware_flops_per_token, rows.peak_flop_per_s
    from kinds as rows
    join planned using (point_id)
    left join losses using (point_id)
),
predicted as (
    select
        point_id, 'predicted' as series, false as beside_measured, if(fits, 'ok', 'oom') as outcome,
        if(fits, predicted_step_time_s, null) as step_time_s,
        if(fits, low, null) as step_time_low_s,
        if(fits, high, null) as step_time_high_s,
        predicted_memory_bytes,
        predicted_own_sigma,
        predicted_size_sigma,
        coalesce(parameters_from, 'prediction') as stack_fingerprint,
        planned.* exclude (point_id)
    from study.predictions
    join planned using (point_id)
    where fits is not null
),
valued as (
    from observed
    union all by name
    from predicted
),
timed as (
    select * replace (
        case when outcome = 'ok' then step_time_s end as step_time_s,
        case when outcome = 'ok' then step_time_low_s end as step_time_low_s,
        case when outcome = 'ok' then step_time_high_s end as step_time_high_s,
        case when outcome = 'ok' then step_time_p95_s end as step_time_p95_s
    )
    from valued
)
select
    *,
    tokens_per_step / step_time_s as tokens_per_s,
    tokens_per_step / step_time_high_s as tokens_per_s_low,
    tokens_per_step / step_time_low_s as tokens_per_s_high,
    tokens_per_s / world_size as tokens_per_s_per_gpu,
    model_flops_per_token * tokens_per_s / world_size as model_flop_per_s_per_gpu,
    hardware_flops_per_token * tokens_per_s / world_size as hardware_flop_per_s_per_gpu,
    model_flop_per_s_per_gpu / peak_flop_per_s as mfu,
    hardware_flop_per_s_per_gpu / peak_flop_per_s as hfu
from timed
