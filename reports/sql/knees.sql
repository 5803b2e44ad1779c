-- Grain: one row per setting and series with at least one step between sizes.
-- Needs: returns
-- knee_world_size: the largest size such that every step up to it still paid, that is returned at
-- least knee_share of twice the throughput per doubling; the smallest size if none did.
-- beyond_data: every step paid, so the knee lies at or beyond the largest size.
-- returned: what the first step that did not pay returned, as a share of the growth in GPUs.
with judged as (
    select *, min(from_world_size) filter (where not pays)
        over (partition by setting_id, series) as stops_at
    from returns
)
select
    setting_id,
    series,
    (select knee_share from study.choices) as knee_share,
    coalesce(any_value(stops_at), max(to_world_size)) as knee_world_size,
    any_value(stops_at) is null as beyond_data,
    any_value(returned) filter (where from_world_size = stops_at) as returned
from judged
group by setting_id, series
order by setting_id, series
