-- Grain: one row per comparison group.
-- points: planned; ok + failed + waiting + predicted.   refusals: combinations that cannot run.
-- skipped: combinations that a guided sweep left out.
-- predicted: points of a study with mode: predict, which wait for nothing; else 0.
with counts as (
    select
        group_id,
        sum(points) as points,
        sum(points) filter (where outcome = 'ok') as ok,
        sum(points) filter (where outcome != 'ok') as failed,
        sum(points) filter (where outcome is null) as waiting
    from outcomes
    group by group_id
),
refusal_counts as (
    select
        group_id,
        count(*) filter (where not skipped) as refusals,
        count(*) filter (where skipped) as skipped
    from refused
    group by group_id
)
select
    group_id,
    coalesce(points, 0)::bigint as points,
    coalesce(ok, 0)::bigint as ok,
    coalesce(failed, 0)::bigint as failed,
    if(mode = 'predict', 0, coalesce(waiting, 0))::bigint as waiting,
    if(mode = 'predict', coalesce(waiting, 0), 0)::bigint as predicted,
    coalesce(refusals, 0) as refusals,
    coalesce(skipped, 0) as skipped
from comparison_groups
cross join study.options
left join counts using (group_id)
left join refusal_counts using (group_id)
order by group_id
