-- Grain: one row per setting, world_size and outcome of its points.
-- Needs: planned, measurements
-- outcome: null for the points that have not run.   points: how many.
select
    planned.setting_id,
    planned.world_size,
    measurements.outcome,
    count(*) as points
from planned
left join (from measurements where series != 'predicted' and not beside_measured) as measurements using (point_id)
group by planned.setting_id, planned.world_size, measurements.outcome
order by setting_id, world_size, outcome nulls last
