-- Grain: one row per comparison group, size and two layouts that differ in one factor only.
-- Both are of the class that speaks at the size. Both are of one software stack, but engines have a
-- stack each: where the factor is the engine, stack_fingerprint is that of the second.
-- The two levels are neighbours among those that ran with all else equal (the batch too, so dp and
-- accumulation follow).   Ids instead of words, to keep the windows small; `pairs` has the words.
-- ratio: tokens_per_s at to_place over that at from_place.
-- near: both layouts are within 30 % of the fastest of their size, where the choice matters.
-- memory_ratio: the same ratio of the measured peak memory, or of the predicted memory for
-- predictions.
with rates as (
    select
        cells.group_id, class, world_size, stack_fingerprint, layout_id, cell_id, mean_log_rate,
        coalesce(peak_memory_bytes, predicted_memory_bytes) as memory_bytes,
        ln(0.7) + max(mean_log_rate) over (partition by cells.group_id, world_size) as near_rate,
        hash(cells.group_id, world_size, stack_fingerprint) as rated_id
    from cells
    join (select group_id, layout, layout_id from names) as names using (group_id, layout)
    where leads
),
groups as (
    select distinct rated_id, group_id, class, world_size, stack_fingerprint from rates
),
matched as (
    select
        rated_id, factor_id,
        lag(place) over neighbours as from_place,
        place as to_place,
        lag(cell_id) over neighbours as from_cell,
        cell_id as to_cell,
        lag(layout_id) over neighbours as from_layout_id,
        layout_id as to_layout_id,
        exp(mean_log_rate - lag(mean_log_rate) over neighbours) as ratio,
        memory_bytes / lag(memory_bytes) over neighbours as memory_ratio,
        least(mean_log_rate, lag(mean_log_rate) over neighbours) >= near_rate as near
    from rates
    join factors using (layout_id)
    window neighbours as (
        partition by if(factor = 'engine', hash(group_id, world_size), rated_id) order by rank
    )
    -- two layouts of one level differ in a choice that one of them leaves unstated
    qualify others = lag(others) over neighbours and from_place != to_place
)
select
    groups.* exclude (rated_id), matched.* exclude (rated_id),
    hash(class, factor_id, from_place, to_place) as effect_id
from matched
join groups using (rated_id)
