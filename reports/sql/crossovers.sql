-- Grain: one row per setting, series, pair of layouts and neighbouring sizes between which they swap.
-- Needs: ranking, colours
-- Only pairs of layouts with a colour of their own (slots 1 to 6), at sizes where both ran.
-- crossing: world_size at which two straight lines through log throughput over log size meet.
-- crossing_low, crossing_high: where it lies when each end moves within its 95 % interval (of one run without repeats), cut off
-- at the two sizes. resolved: the intervals do not overlap at either size, so that the order does
-- change; null where a layout has no interval.
with placed as (
    select
        setting_id, series, world_size, layout, layout_name, slot, position,
        ln(tokens_per_s) as rate,
        (ln(tokens_per_s_high) - ln(tokens_per_s_low)) / 2 as half
    from ranking
    join (select setting_id, layout, slot from colours where slot < 7) using (setting_id, layout)
    qualify row_number() over (
        partition by setting_id, series, world_size, layout order by position
    ) = 1
),
pairs as (
    select
        setting_id, series, world_size,
        a.layout as before_layout, b.layout as after_layout,
        a.layout_name as before_name, b.layout_name as after_name,
        a.slot as before_slot, b.slot as after_slot,
        a.position as before_position, b.position as after_position,
        a.rate - b.rate as lead,
        sqrt(a.half ** 2 + b.half ** 2) as margin
    from placed as a
    join placed as b using (setting_id, series, world_size)
    where a.layout != b.layout
),
steps as (
    select
        *,
        lead(world_size) over sizes as n1,
        lead(lead) over sizes as lead1,
        lead(margin) over sizes as margin1,
        lead(after_position) over sizes as position1
    from pairs
    window sizes as (
        partition by setting_id, series, before_layout, after_layout order by world_size
    )
),
swaps as (
    select *, ln(n1 / world_size) as width, lead / (lead - lead1) as meets
    from steps
    where lead > 0 and lead1 < 0
)
select
    setting_id,
    series,
    world_size as from_world_size,
    n1 as to_world_size,
    before_layout,
    before_name,
    before_slot,
    after_layout,
    after_name,
    after_slot,
    before_position = 1 and position1 = 1 as of_fastest,
    world_size * exp(width * meets) as crossing,
    world_size * exp(width * case
        when lead - margin <= 0 then 0
        else (lead - margin) / (lead - margin - (lead1 - margin1))
    end) as crossing_low,
    world_size * exp(width * case
        when lead1 + margin1 >= 0 then 1
        else (lead + margin) / (lead + margin - (lead1 + margin1))
    end) as crossing_high,
    lead > margin and -lead1 > margin1 as resolved
from swaps
order by setting_id, series, from_world_size, crossing, before_layout, after_layout
