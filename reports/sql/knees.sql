-- Grain: one row per comparison group with at least one step between sizes.
-- knee_world_size: the likeliest knee, the largest size up to which every step paid (see `returns`);
-- the smallest size if the first step did not.   probability: that it is the knee.
-- beyond_data: it is the largest size, so the knee is there or beyond.
-- returned: what the step beyond it returned, as a share of the growth in GPUs.
with likeliest as (
    select
        group_id,
        arg_max(world_size, knee_probability) as knee_world_size,
        max(knee_probability) as probability,
        max(world_size) as largest
    from sizes
    group by group_id
    having count(*) > 1
)
select
    group_id,
    (select knee_share from study.options) as knee_share,
    knee_world_size, probability,
    knee_world_size = largest as beyond_data,
    returns.returned
from likeliest
left join returns using (group_id)
where returns.from_world_size = knee_world_size or (beyond_data and returns.to_world_size = largest)
order by group_id
