-- Grain: one row per setting and series with at least one step between sizes.
-- Needs: returns
-- knee_world_size: the largest size up to which every step paid (see `returns`); the smallest size
-- if the first step did not.
-- beyond_data: every step paid, so the knee is at or beyond the largest size.
-- returned: what the first step that did not pay returned, as a share of the growth in GPUs.
with with_first_unpaid as (
    select *, min(from_world_size) filter (where not pays)
        over (partition by setting_id, series) as unpaid_from
    from returns
)
select
    setting_id, series,
    (select knee_share from study.options) as knee_share,
    coalesce(any_value(unpaid_from), max(to_world_size)) as knee_world_size,
    any_value(unpaid_from) is null as beyond_data,
    any_value(returned) filter (where from_world_size = unpaid_from) as returned
from with_first_unpaid
group by setting_id, series
order by setting_id, series
