-- Claim: Seconds per step fall as nodes are added, for every stage.
-- Source: arXiv 2310.05350
-- Holds: at the largest size a step of every stage takes less time than at the smallest.
with steps as (
    select group_id, source, zero_stage, world_size, min(step_time_s) as seconds
    from estimates
    where step_time_s is not null and zero_shard_size is null
    group by all
),
ends as (
    select
        group_id, source, zero_stage,
        arg_max(seconds, world_size) / arg_min(seconds, world_size) as ratio,
        min(world_size) as first_size, max(world_size) as last_size
    from steps
    group by all
    having count(*) > 1
)
select
    source,
    format('{} on {}', model, cluster) as subject,
    string_agg(format('stage {}: x{:.2f} from {} to {}', zero_stage, ratio, first_size, last_size), '; ' order by zero_stage) as observed,
    bool_and(ratio < 1) as holds
from ends
join comparison_groups using (group_id)
where study_kind = 'strong'
group by group_id, source, model, cluster
