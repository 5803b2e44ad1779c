-- Grain: one row per comparison group, size, and part that takes time of a step of the layout advised.
-- From the profiler if it measured the layout, which needs full steps (exposed communication between
-- pipeline stages is the bubble), else from the prediction (source 'predicted').
-- seconds: of an unprofiled step. The profiler slows a step down, so its parts are scaled to the
-- timed step. A step that the profiler slowed down by more than 1.25 times is another step: no split.
-- profiled_s: seconds of the profiled step; null for predictions.
-- share_from, share_to: where the part lies in the stack, ratios of the step.
-- host_bound: whether the host's launches and hooks bound the predicted step; null if measured.
with bubbles as (
    select sizes.cell_id, median(coalesce(pipeline_bubble_s, 0)) as bubble_s
    from (select cell_id from sizes where compute_s is not null) as sizes
    join measurements using (cell_id)
    join study.rows using (point_id, attempt, started_at)
    where measurements.outcome = 'ok'
    group by sizes.cell_id
),
profiled as (
    select
        group_id, world_size, layout_name, 'measured' as source, step_time_s,
        unnest([
            {'part_order': 0, 'part': 'compute', 'seconds': compute_s},
            {'part_order': 3, 'part': 'exposed communication',
                'seconds': exposed_comm_s - coalesce(bubble_s, 0)},
            {'part_order': 4, 'part': 'pipeline bubble', 'seconds': coalesce(bubble_s, 0)},
            {'part_order': 5, 'part': 'idle and rest', 'seconds': idle_s}
        ], recursive := true)
    from sizes
    left join bubbles using (cell_id)
    where compute_s is not null and exposed_comm_s is not null
),
same_step as (
    select * from profiled
    qualify sum(seconds) over (partition by group_id, world_size) <= 1.25 * step_time_s
),
predicted as (
    select
        sizes.group_id, sizes.world_size, sizes.layout_name, 'predicted' as source,
        host_bound,
        unnest([
            {'part_order': 0, 'part': 'compute',
                'seconds': gemm_s + attention_s + elementwise_s + head_s + optimizer_s},
            {'part_order': 1, 'part': 'tensor parallel', 'seconds': tp_comm_s},
            {'part_order': 2, 'part': 'pipeline transfers', 'seconds': pp_comm_s},
            {'part_order': 3, 'part': 'exposed communication',
                'seconds': dp_comm_s + coalesce(ep_comm_s, 0)},
            {'part_order': 4, 'part': 'pipeline bubble', 'seconds': bubble_s},
            {'part_order': 5, 'part': 'idle and rest',
                'seconds': host_s + jitter_s + stall_s}
        ], recursive := true)
    from sizes
    join planned_points using (group_id, world_size, layout)
    join study.predictions using (point_id)
    where planned_points.repeat = 0 and gemm_s is not null
        and (sizes.group_id, sizes.world_size) not in (
            select (group_id, world_size) from profiled
        )
),
parts as (
    select *, seconds as length
    from (from same_step union all by name from predicted)
    where seconds > 0
)
select
    group_id, world_size, layout_name, source, part_order, part,
    if(source = 'predicted', seconds, length * step_time_s / sum(length) over step) as seconds,
    if(source = 'predicted', null, sum(length) over step) as profiled_s,
    coalesce(sum(length) over parts_before, 0) / sum(length) over step as share_from,
    (coalesce(sum(length) over parts_before, 0) + length) / sum(length) over step as share_to,
    host_bound
from parts
window step as (partition by group_id, world_size, source),
    parts_before as (
        partition by group_id, world_size, source order by part_order
        rows between unbounded preceding and 1 preceding
    )
order by group_id, world_size, source, part_order
