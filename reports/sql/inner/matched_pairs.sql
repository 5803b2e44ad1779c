-- Grain: one row per setting, series, world_size, stack and two layouts that differ in one factor only.
-- Needs: layouts, factors, coinciding
-- Never two layouts that are the same training there.
-- The two levels are neighbours among those that ran with all else equal (the batch too, so dp and
-- accumulation follow).   Ids instead of words, to keep the windows small; `pairs` has the words.
-- ratio: tokens_per_s at to_place over that at from_place.
-- near: both layouts are within 30 % of the fastest of their size, where the choice matters.
-- memory_ratio: the same ratio of the measured peak memory, or of the predicted memory for
-- predictions.
with rates as (
    select
        setting_id, series, world_size, stack_fingerprint, layout_id, tokens_per_s,
        coalesce(peak_memory_bytes, predicted_memory_bytes) as memory_bytes,
        0.7 * max(tokens_per_s) over (partition by setting_id, series, world_size) as near_rate,
        hash(setting_id, series, world_size, stack_fingerprint) as group_id
    from layouts
    where tokens_per_s is not null
),
groups as (
    select distinct group_id, setting_id, series, world_size, stack_fingerprint from rates
),
matched as (
    select
        group_id, factor_id,
        lag(place) over neighbours as from_place,
        place as to_place,
        lag(layout_id) over neighbours as from_layout_id,
        layout_id as to_layout_id,
        tokens_per_s / lag(tokens_per_s) over neighbours as ratio,
        memory_bytes / lag(memory_bytes) over neighbours as memory_ratio,
        least(tokens_per_s, lag(tokens_per_s) over neighbours) >= near_rate as near
    from rates
    join factors using (layout_id)
    window neighbours as (partition by group_id order by rank)
    -- two layouts of one level differ in a choice that one of them leaves unstated
    qualify others = lag(others) over neighbours and from_place != to_place
)
select groups.* exclude (group_id), matched.* exclude (group_id)
from matched
join groups using (group_id)
where (setting_id, world_size, from_layout_id, to_layout_id) not in (
    select (setting_id, world_size, layout_id, same_id) from coinciding
)
