-- Grain: one row per measured row (repeat) of the fastest and of the advised layout of each size.
-- Needs: best, spoken, measurements
-- Columns that only these few layouts need: their step times and their communication.
-- fastest: of the layouts measured in full steps.   advised: by the series that the report speaks of.
with winners as (
    select
        setting_id, spoken.advised_row_name as layout_name,
        measurements.point_id, measurements.attempt, measurements.started_at,
        (measurements.layout, measurements.stack_fingerprint)
            = (best.layout, best.stack_fingerprint) as fastest,
        (measurements.layout, measurements.stack_fingerprint)
            = (spoken.advised_row_layout, spoken.advised_row_stack) as advised
    from best
    join measurements using (setting_id, series, world_size)
    join spoken using (setting_id, world_size)
    where best.series = 'measured' and measurements.outcome = 'ok' and (fastest or advised)
)
select
    winners.* exclude (point_id, attempt, started_at), point_id, series, world_size,
    tokens_per_step, step_times_s, comm_s, exposed_comm_s, all_reduce_s, all_gather_s,
    reduce_scatter_s, all_to_all_s, send_recv_s, broadcast_s, tp_comm_s, cp_comm_s, dp_comm_s,
    pp_comm_s, ep_comm_s, pipeline_bubble_s
from study.rows as rows
join winners using (point_id, attempt, started_at)
where rows.series = 'measured'
