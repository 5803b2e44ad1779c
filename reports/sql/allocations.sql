-- Grain: one row per scheduler allocation (job) in which a point left a row that is still in use.
-- Needs: nothing
-- What an allocation was spent on.
-- span_s: seconds from the first start of ranks to the last end. The scheduler counts more: also
-- the start of the allocation and, if it was requeued, the wait.
-- in_steps_s: seconds of the span in measured steps, short ones included, warm-up excluded.
-- startup_s: seconds of the span between the start of ranks and their first step.
-- share_in_steps: ratio.   rank_hours: ranks x hours, with the ranks of the largest point.
-- energy_j: joules drawn by all devices in full measured steps; null if none was measured.
with timed_rows as (
    select
        *,
        started_at::timestamptz as began,
        began + to_microseconds((1e6 * duration_s)::bigint) as ended,
        coalesce(list_sum(step_times_s), 0) + coalesce(list_sum(short_step_times_s), 0) as steps_s
    from study.rows
    where job_id is not null and series = 'measured'
)
select
    job_id,
    count(*) as points,
    count(*) filter (where outcome = 'ok') as points_ok,
    max(world_size) as world_size,
    list_sort(list_distinct(flatten(list(hosts)))) as hosts,
    min(began) as started_at,
    epoch(max(ended) - min(began)) as span_s,
    sum(steps_s) as in_steps_s,
    sum(startup_s) as startup_s,
    in_steps_s / nullif(span_s, 0) as share_in_steps,
    max(world_size) * span_s / 3600 as rank_hours,
    max(peak_memory_bytes) as peak_memory_bytes,
    sum(energy_j * len(step_times_s)) as energy_j
from timed_rows
group by job_id
order by min(began), job_id
