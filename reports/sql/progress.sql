-- Grain: one row per setting.
-- Needs: settings, outcomes, refused
-- points: asked for. ok + failed + waiting + predicted = points. refusals: combinations that cannot
-- run. predicted: of a study with mode: predict, whose points wait for nothing; else 0.
with counted as (
    select
        setting_id,
        sum(points) as points,
        sum(points) filter (where outcome = 'ok') as ok,
        sum(points) filter (where outcome != 'ok') as failed,
        sum(points) filter (where outcome is null) as waiting
    from outcomes
    group by setting_id
),
turned_down as (
    select setting_id, count(*) as refusals from refused group by setting_id
)
select
    setting_id,
    coalesce(points, 0)::bigint as points,
    coalesce(ok, 0)::bigint as ok,
    coalesce(failed, 0)::bigint as failed,
    if(mode = 'predict', 0, coalesce(waiting, 0))::bigint as waiting,
    if(mode = 'predict', coalesce(waiting, 0), 0)::bigint as predicted,
    coalesce(refusals, 0) as refusals
from settings
cross join study.choices
left join counted using (setting_id)
left join turned_down using (setting_id)
order by setting_id
