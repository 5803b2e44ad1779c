-- Grain: one row per measured row (repeat) of a fastest layout, at each size.
-- Needs: best, measurements
-- Every column of the row, for what only the fastest layouts are asked.
with winners as (
    select
        best.setting_id, best.layout_name, best.drawn, measurements.point_id,
        measurements.attempt, measurements.started_at
    from best
    join measurements using (setting_id, series, world_size, layout, stack_fingerprint)
    where best.series = 'measured' and measurements.outcome = 'ok'
)
select winners.setting_id, winners.layout_name, winners.drawn, rows.*
from study.rows as rows
join winners using (point_id, attempt, started_at)
where rows.series = 'measured'
