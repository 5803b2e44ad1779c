-- Grain: one row per point and series: its last attempt here, what others published, a prediction.
-- Needs: planned_points, losses
-- series: measured | extended | published | predicted; values of different series are never mixed.
-- extended: a full step derived from short ones. Where these rank layouts, a layout that ran full
-- steps only (short ones save it little, or were not on a line) stands there with its measured step,
-- so that it is ranked too, also where all short ones failed. beside_measured: the point also ran
-- full steps, which are a row of their own, and count once.
-- outcome: ok or a failure, of a prediction ok or oom. Times, rates and what follows are null
-- unless ok.
-- losses_agree: with the other layouts of the same training, see `losses`. false is a mark for the
-- reader: the row stays measured.
-- tokens_per_s: of the whole job. _low and _high follow from the interval of the step time: 95 % of
-- one measured run, 80 % in the series extended and predicted.
-- step_time_p95_s: 95 % quantile of the measured steps; null for published rows and predictions.
-- mfu, hfu: ratios; null if no peak is published.
-- model_flop_per_s_per_gpu: FLOP/s the model got out of one GPU, recomputation excluded.
-- peak_memory_bytes: measured only.   predicted_memory_bytes: predicted only.
-- predicted_own_sigma, predicted_size_sigma: standard deviations of a prediction's ln(step time):
-- the part of the error that is this layout's own, and the part that all layouts of a size share.
-- hosts: names of the nodes that it ran on; null for predictions.
-- What the layout chooses on each axis is in `statistics` and `layouts`.
with short_layouts as (
    select distinct
        planned_points.setting_id, planned_points.world_size, planned_points.layout,
        extended_step_time_s is not null as ran
    from study.latest_rows
    join planned_points using (point_id)
    where extended_step_time_s is not null or step_time_kind = 'extended'
),
full_only as (
    select point_id
    from study.latest_rows
    join planned_points using (point_id)
    where
        step_time_kind = 'measured' and extended_step_time_s is null
        and planned_points.setting_id in (select setting_id from short_layouts)
        and (planned_points.setting_id, planned_points.world_size, planned_points.layout)
        not in (select (setting_id, world_size, layout) from short_layouts where ran)
),
rows_by_kind as (  -- a row with full steps stands twice where layouts are ranked by short ones
    select
        *,
        false as beside_measured,
        step_time_kind is not distinct from 'extended' as is_extended
    from study.latest_rows
    union all
    select *, true as beside_measured, true as is_extended
    from study.latest_rows
    where step_time_kind = 'measured' and extended_step_time_s is not null
    union all
    select
        * replace (
            step_time_s as extended_step_time_s,
            step_time_s * (step_time_low_s / step_time_s) ** (getvariable('z80') / getvariable('z95'))
                as extended_low_s,
            step_time_s * (step_time_high_s / step_time_s) ** (getvariable('z80') / getvariable('z95'))
                as extended_high_s
        ),
        true as beside_measured, true as is_extended
    from study.latest_rows
    where point_id in (from full_only)
),
observed as (
    select
        setting_id, planned_points.layout, planned_points.repeat, planned_points.world_size,
        planned_points.dp, planned_points.global_batch_size,
        planned_points.gradient_accumulation_steps,
        point_id, if(is_extended, 'extended', rows.series) as series, beside_measured, attempt,
        outcome, error_message,
        if(rows.series = 'measured', agrees, null) as losses_agree,
        if(is_extended, extended_step_time_s, step_time_s) as step_time_s,
        if(is_extended, extended_low_s, step_time_low_s) as step_time_low_s,
        if(is_extended, extended_high_s, step_time_high_s) as step_time_high_s,
        if(is_extended, null, list_aggregate(step_times_s, 'quantile_cont', 0.95)) as step_time_p95_s,
        if(is_extended, null, compute_s) as compute_s,
        if(is_extended, null, comm_s) as comm_s,
        if(is_extended, null, exposed_comm_s) as exposed_comm_s,
        if(is_extended, null, idle_s) as idle_s,
        peak_memory_bytes, null::bigint as predicted_memory_bytes, memory_meter,
        if(is_extended, null, energy_j) as energy_j,
        if(is_extended, null, mean_power_w) as mean_power_w,
        startup_s, hosts, duration_s, stack_fingerprint, started_at, rows.tokens_per_step,
        rows.model_flops_per_token, rows.hardware_flops_per_token, rows.peak_flop_per_s
    from rows_by_kind as rows
    join planned_points using (point_id)
    left join (select point_id, agrees from losses) using (point_id)
),
predicted as (
    select
        point_id, 'predicted' as series, false as beside_measured, if(fits, 'ok', 'oom') as outcome,
        if(fits, predicted_step_time_s, null) as step_time_s,
        if(fits, low, null) as step_time_low_s,
        if(fits, high, null) as step_time_high_s,
        predicted_memory_bytes, predicted_own_sigma, predicted_size_sigma,
        coalesce(parameters_from, 'prediction') as stack_fingerprint,
        planned_points.* exclude (point_id)
    from study.predictions
    join planned_points using (point_id)
    where fits is not null
),
observed_and_predicted as (
    from observed
    union all by name
    from predicted
),
only_ok_timed as (
    select * replace (
        case when outcome = 'ok' then step_time_s end as step_time_s,
        case when outcome = 'ok' then step_time_low_s end as step_time_low_s,
        case when outcome = 'ok' then step_time_high_s end as step_time_high_s,
        case when outcome = 'ok' then step_time_p95_s end as step_time_p95_s
    )
    from observed_and_predicted
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
from only_ok_timed
