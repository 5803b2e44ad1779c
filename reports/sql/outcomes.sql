-- Grain: one row per setting, world_size and outcome of its points.
-- Needs: waiting_points, measurements
-- points: how many.   outcome: null for points without a valid row.
select setting_id, world_size, outcome, count(*) as points
from (
    select setting_id, world_size, outcome
    from measurements
    where series != 'predicted'
    union all by name
    select setting_id, world_size from waiting_points
)
group by setting_id, world_size, outcome
order by setting_id, world_size, outcome nulls last
