-- Grain: one row per measured row (repeat) of a fastest layout, at each size.
-- Needs: best, measurements
-- Step times and communication, which only the fastest layouts are asked for.
with winners as (
    select
        best.setting_id, best.layout_name, best.drawn, measurements.point_id,
        measurements.attempt, measurements.started_at
    from best
    join measurements using (setting_id, series, world_size, layout, stack_fingerprint)
    where best.series = 'measured' and measurements.outcome = 'ok'
)
select
    winners.setting_id, winners.layout_name, winners.drawn, point_id, series, world_size,
    tokens_per_step, step_times_s, comm_s, exposed_comm_s, all_reduce_s, all_gather_s,
    reduce_scatter_s, all_to_all_s, send_recv_s, broadcast_s, tp_comm_s, cp_comm_s, dp_comm_s,
    pp_comm_s, ep_comm_s, pipeline_bubble_s
from study.rows as rows
join winners using (point_id, attempt, started_at)
where rows.series = 'measured'
