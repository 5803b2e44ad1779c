-- Grain: one row per allocation of a scheduler in which a point left a row that was not set aside.
-- Needs: nothing
-- span_s: seconds from the first start of ranks in it to the last end; the scheduler's own count has
-- the start of the allocation and the wait of one that was requeued in it too.
-- in_steps_s: seconds of it in measured steps, short ones too, warm-up excluded.
-- startup_s: seconds of it between the start of ranks and their first step.
-- share_in_steps: ratio.   rank_hours: ranks x hours, of the largest point.
-- energy_j: joules drawn in full measured steps, all devices; null where none was measured.
with ended as (
    select
        *,
        started_at::timestamptz as began,
        began + to_microseconds((1e6 * duration_s)::bigint) as ended,
        coalesce(list_sum(step_times_s), 0) + coalesce(list_sum(short_step_times_s), 0) as steps_s
    from study.rows
    where job_id is not null
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
from ended
group by job_id
order by min(began), job_id
