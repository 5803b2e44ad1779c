-- Grain: one row per point and source: its last attempt here, what others published, a prediction.
-- source: measured | extended | published | predicted. extended: the point ran short
-- steps only, from which a full one is derived.
-- outcome: ok or a failure, of a prediction ok or oom. Times, rates and what follows are null
-- unless ok.
-- losses_agree: with the other layouts of the same training, see `losses`. false is a mark for the
-- reader: the row stays measured.
-- step_time_low_s, _high_s, tokens_per_s_low, _high: as the row states them: 95 % of one run, 80 %
-- of an extended step or a prediction.
-- log_sigma: standard error of ln tokens_per_s that follows from them; of a prediction the whole.
-- class: 1 what ran here (measured, extended), 2 published, 3 predicted.
-- cell_id: of the layout at its size, in its class and software stack; see `cells`.
-- mfu, hfu: ratios; null if no peak is published.
-- model_flop_per_s_per_gpu: FLOP/s the model got out of one GPU, recomputation excluded.
-- peak_memory_bytes: measured only.   predicted_memory_bytes, fits_chance, *_sigma: predicted only.
-- load: of the first host when the ranks started, over the most threads of one point there: above 1
-- somebody else computed. Null on GPUs.
-- others_share: of the processors that the ranks wanted in the measured steps, what others took.
-- suspended_s: from outside, between measured steps.   longest_step: over the median step, a ratio.
-- hosts: names of the nodes that it ran on; null for predictions.
-- The layout's choice on each axis is in `statistics` and `estimates`.
with most_threads as (
    select
        cluster,
        max(ceil(world_size / len(hosts)) * coalesce(threads_per_rank, 1)) as threads
    from study.latest_rows semi join planned_points using (point_id)
    where gpu = 'cpu'
    group by cluster
),
observed as (
    select
        group_id, planned_points.layout, planned_points.repeat, planned_points.world_size,
        planned_points.dp, planned_points.global_batch_size,
        planned_points.gradient_accumulation_steps, point_id,
        step_time_kind is not distinct from 'extended' as is_extended,
        if(is_extended, 'extended', rows.source) as source, attempt, outcome, error_message,
        if(rows.source = 'measured', agrees, null) as losses_agree,
        if(is_extended, extended_step_time_s, step_time_s) as step_time_s,
        if(is_extended, extended_low_s, step_time_low_s) as step_time_low_s,
        if(is_extended, extended_high_s, step_time_high_s) as step_time_high_s,
        list_max(step_times_s) / rows.step_time_s as longest_step, suspended_s,
        compute_s, comm_s, exposed_comm_s, idle_s, peak_memory_bytes, memory_meter, energy_j,
        mean_power_w, slowdown_share, others_share, num_alloc_retries, startup_s, hosts, duration_s,
        stack_fingerprint, started_at,
        load_average / threads as load,
        rows.tokens_per_step, rows.model_flops_per_token, rows.hardware_flops_per_token,
        rows.peak_flop_per_s
    from study.latest_rows as rows
    join planned_points using (point_id)
    left join (select point_id, agrees from losses) using (point_id)
    left join most_threads using (cluster)
),
predicted as (
    select
        point_id, 'predicted' as source, if(fits, 'ok', 'oom') as outcome,
        predicted_step_time_s as step_time_s,
        low as step_time_low_s,
        high as step_time_high_s,
        predicted_memory_bytes, capacity_bytes, fits_chance,
        predicted_common_sigma, predicted_layout_sigma, predicted_size_sigma,
        predicted_rest_sigma,
        coalesce(parameters_from, 'prediction') as stack_fingerprint,
        calibrated_until as started_at,
        planned_points.* exclude (point_id)
    from study.predictions
    join planned_points using (point_id)
    where fits is not null
),
observed_and_predicted as (
    select * exclude (is_extended) from observed
    union all by name
    from predicted
),
only_ok_timed as (
    select * replace (
        if(outcome = 'ok', step_time_s, null) as step_time_s,
        if(outcome = 'ok', step_time_low_s, null) as step_time_low_s,
        if(outcome = 'ok', step_time_high_s, null) as step_time_high_s
    )
    from observed_and_predicted
)
select
    *,
    case source when 'published' then 2 when 'predicted' then 3 else 1 end as class,
    hash(group_id, world_size, layout, class, stack_fingerprint) as cell_id,
    tokens_per_step / step_time_s as tokens_per_s,
    tokens_per_step / step_time_high_s as tokens_per_s_low,
    tokens_per_step / step_time_low_s as tokens_per_s_high,
    ln(step_time_high_s / step_time_low_s) / 2 / if(
        source in ('extended', 'predicted'), getvariable('z80'), getvariable('z95')
    ) as log_sigma,
    tokens_per_s / world_size as tokens_per_s_per_gpu,
    model_flops_per_token * tokens_per_s / world_size as model_flop_per_s_per_gpu,
    hardware_flops_per_token * tokens_per_s / world_size as hardware_flop_per_s_per_gpu,
    model_flop_per_s_per_gpu / peak_flop_per_s as mfu,
    hardware_flop_per_s_per_gpu / peak_flop_per_s as hfu
from only_ok_timed
order by group_id, world_size, layout, repeat, point_id, source
