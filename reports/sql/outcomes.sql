-- Grain: one row per comparison group, world_size and outcome of its points.
-- points: how many.   outcome: null for points without a valid row.
select group_id, world_size, outcome, count(*) as points
from (
    select group_id, world_size, outcome
    from measurements
    where source != 'predicted'
    union all by name
    select group_id, world_size from waiting_points
)
group by group_id, world_size, outcome
order by group_id, world_size, outcome nulls last
