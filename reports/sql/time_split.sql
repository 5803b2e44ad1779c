-- Grain: one row per setting, world_size, and part of the step of the layout advised there.
-- Needs: best, layouts, planned, winner_rows
-- From a profiler's window where one was measured (the exposed communication between stages is the
-- bubble, see `communication` for kinds and axes), else from the prediction (series 'predicted').
-- seconds: per step as it was timed, or predicted: a profiler slows a step down, so the parts of its
-- window share the timed step out as they shared the window's profiled_s seconds (null: predicted).
-- share_from, share_to: ratios of the step. hidden_share: communication hidden behind compute, as a
-- share of the window; null where unknown.
with bubbles as (
    select setting_id, world_size, median(coalesce(pipeline_bubble_s, 0)) as bubble_s
    from winner_rows
    where advised
    group by setting_id, world_size
),
profiled as (
    select
        setting_id, world_size, layouts.layout_name, 'measured' as series, layouts.step_time_s,
        (comm_s - exposed_comm_s) as hidden_s,
        unnest([
            {'part_order': 0, 'part': 'compute', 'seconds': compute_s},
            {'part_order': 3, 'part': 'exposed communication',
                'seconds': exposed_comm_s - coalesce(bubble_s, 0)},
            {'part_order': 4, 'part': 'pipeline bubble', 'seconds': coalesce(bubble_s, 0)},
            {'part_order': 5, 'part': 'idle and rest', 'seconds': idle_s}
        ], recursive := true)
    from (
        select setting_id, series, world_size, advised_row_layout as layout,
            advised_row_stack as stack_fingerprint
        from best
        where drawn and series = 'measured'
    )
    join layouts using (setting_id, series, world_size, layout, stack_fingerprint)
    left join bubbles using (setting_id, world_size)
    where compute_s is not null and exposed_comm_s is not null
),
foretold as (
    select
        best.setting_id, best.world_size, best.advised_row_name as layout_name,
        'predicted' as series,
        null::double as hidden_s,
        unnest([
            {'part_order': 0, 'part': 'compute',
                'seconds': gemm_s + attention_s + elementwise_s + head_s + optimizer_s},
            {'part_order': 1, 'part': 'tensor parallel', 'seconds': tp_comm_s},
            {'part_order': 2, 'part': 'pipeline transfers', 'seconds': pp_comm_s},
            {'part_order': 3, 'part': 'exposed communication', 'seconds': dp_comm_s + coalesce(ep_comm_s, 0)},
            {'part_order': 4, 'part': 'pipeline bubble', 'seconds': bubble_s},
            {'part_order': 5, 'part': 'idle and rest',
                'seconds': host_s + jitter_s + overhead_s + stall_s}
        ], recursive := true)
    from best
    join planned on planned.setting_id = best.setting_id
        and planned.world_size = best.world_size and planned.layout = best.advised_row_layout
    join study.predictions using (point_id)
    where best.drawn and planned.repeat = 0 and gemm_s is not null
        and (best.setting_id, best.world_size) not in (
            select (setting_id, world_size) from profiled
        )
),
parts as (
    select *, greatest(coalesce(seconds, 0), 0) as counted
    from (from profiled union all by name from foretold)
)
select
    setting_id, world_size, layout_name, series, part_order, part,
    if(series = 'predicted', seconds, seconds * step_time_s / sum(counted) over whole) as seconds,
    if(series = 'predicted', null, sum(counted) over whole) as profiled_s,
    coalesce(sum(counted) over earlier, 0) / sum(counted) over whole as share_from,
    (coalesce(sum(counted) over earlier, 0) + counted) / sum(counted) over whole as share_to,
    hidden_s / sum(counted) over whole as hidden_share
from parts
window whole as (partition by setting_id, world_size, series),
    earlier as (
        partition by setting_id, world_size, series order by part_order
        rows between unbounded preceding and 1 preceding
    )
order by setting_id, world_size, series, part_order
