-- Grain: one row per setting, series, world_size, stack and two layouts that differ in one factor.
-- Needs: layouts, factors
-- ratio: tokens_per_s at to_place over tokens_per_s at from_place, all else equal (the batch too: dp
-- and accumulation follow). Levels are neighbours among those that ran beside each other.
-- near: both are within 30 % of the fastest of their size, where one would choose between them.
-- memory_ratio: likewise of the measured peak, of predictions of the predicted memory.
-- Numbers only, because a window carries all it is given; `pairs` has the words.
with ran as (
    select
        setting_id, series, world_size, stack_fingerprint, layout_id, tokens_per_s,
        coalesce(peak_memory_bytes, predicted_memory_bytes) as memory_bytes,
        0.7 * max(tokens_per_s) over (partition by setting_id, series, world_size) as near_rate,
        hash(setting_id, series, world_size, stack_fingerprint) as field
    from layouts
    where tokens_per_s is not null
),
fields as (
    select distinct field, setting_id, series, world_size, stack_fingerprint from ran
),
matched as (
    select
        field,
        factor_id,
        lag(place) over neighbours as from_place,
        place as to_place,
        lag(layout_id) over neighbours as from_layout_id,
        layout_id as to_layout_id,
        tokens_per_s / lag(tokens_per_s) over neighbours as ratio,
        memory_bytes / lag(memory_bytes) over neighbours as memory_ratio,
        least(tokens_per_s, lag(tokens_per_s) over neighbours) >= near_rate as near
    from ran
    join factors using (layout_id)
    window neighbours as (partition by field order by rank)
    qualify others = lag(others) over neighbours
)
select fields.* exclude (field), matched.* exclude (field)
from matched
join fields using (field)
