-- Grain: one row per comparison group, size, layout, source and software stack that was tried or predicted.
-- ln_rate, ln_rate_sigma: mean and standard deviation of ln tokens_per_s (scaling/analyse/posterior);
-- ln_rate_own_sigma: the part that no other layout of the size shares.
-- *_low, *_high: interval of `level`, 0.95 of what ran or was published, 0.80 of a prediction.
-- speaks: see `cells`.   candidate: it speaks, ran without allocator
-- retries or surely fits, and its source is the first one at
-- the size: here before published before predicted. Shares, p_best and expected_loss are about
-- candidates.
-- share_of_best: mean of tokens_per_s over that of the best.   p_best: probability of being the best.
-- close: one of several with p_best above 5 %.   expected_loss: what choosing it costs, a ratio.
-- advised: the layout to use at the size (scaling/analyse/decision.py).
-- measure_next: worth a run before all others if the size is too close to call
-- (scaling/analyse/next_points.py).   run_gpu_hours: of one more run.
-- position: 1 is the fastest; failures follow.   place: order in a chart: the advised one, other
-- candidates, predictions, failures.   slot: its colour, 1 to 6; 7 is the grey of all others.
-- fits_probability: 1 if it ran; null where unknown.   outcome: ok if a repeat ran, else the
-- commonest failure.   peak_memory_bytes: of the largest repeat.   energy_j: per step, all devices.
-- disturbed_points: its runs of which one or more likely was disturbed, by its repeats; which of two
-- was cannot be known. Null if none likely was.
-- single_run, load, others_share, suspended_s, longest_step, slowdown_share, num_alloc_retries,
-- losses_agree, slow_hosts: the health of its runs, see `measurements` and `hosts`; the rate is corrected for slow hosts.
with rated as (
    select
        cells.* exclude (
            mean_log_rate, log_sigma, common_sigma, layout_sigma, size_sigma, rest_sigma, duration_s
        ),
        drawn_cells.* exclude (cell_id, candidate, close, advised, measure_next),
        coalesce(candidate, false) as candidate,
        coalesce(close, false) as close,
        coalesce(advised, false) as advised,
        coalesce(measure_next, false) as measure_next,
        row_number() over size as position,
        row_number() over chart as place
    from cells
    left join drawn_cells using (cell_id)
    window
        size as (
            partition by group_id, world_size
            order by not speaks, ln_rate desc nulls last, layout, class, stack_fingerprint
        ),
        chart as (
            partition by group_id, world_size
            order by not speaks, coalesce(advised, false) desc, coalesce(leads, false) desc,
                ln_rate desc nulls last, layout, class, stack_fingerprint
        )
),
standings as (
    select
        group_id, layout,
        min(world_size) filter (where advised) as advised_from,
        max(p_best) as p_best,
        avg(share_of_best) filter (where leads) as mean_share,
        count(*) filter (where outcome = 'ok') as sizes
    from rated
    where speaks
    group by group_id, layout
),
slots as (
    select
        group_id, layout,
        least(7, row_number() over (
            partition by group_id
            order by advised_from nulls last, round(p_best, 3) desc nulls last, sizes desc,
                mean_share desc nulls last, layout
        )) as slot
    from standings
)
select
    rated.*,
    tokens_per_s / world_size as tokens_per_s_per_gpu,
    tokens_per_step / tokens_per_s as step_time_s,
    tokens_per_step / tokens_per_s_high as step_time_low_s,
    tokens_per_step / tokens_per_s_low as step_time_high_s,
    model_flops_per_token * tokens_per_s / world_size as model_flop_per_s_per_gpu,
    hardware_flops_per_token * tokens_per_s / world_size as hardware_flop_per_s_per_gpu,
    model_flop_per_s_per_gpu / peak_flop_per_s as mfu,
    hardware_flop_per_s_per_gpu / peak_flop_per_s as hfu,
    if(class = 3, null, ok_runs = 1) as single_run,
    named_runs.slow_hosts,
    slot,
    names.* exclude (group_id, layout)
from rated
left join slots using (group_id, layout)
left join named_runs using (cell_id)
join names using (group_id, layout)
order by group_id, world_size, place
