-- Grain: one row per setting, series, two layouts and neighbouring sizes between which they swap.
-- Needs: ranking, colours
-- Only layouts with a colour of their own (slots 1 to 6), at sizes where both ran.
-- crossing: world_size at which the two straight lines through log throughput over log size meet.
-- crossing_low, crossing_high: where they meet if each end moves within the margin of the two rates
-- (see `ranking`), cut off at the two sizes.
-- of_fastest: the layout before is the fastest at the smaller size, the layout after at the larger.
-- resolved: the order changes, because the two are told apart at both sizes; null if a layout has
-- no interval.
with rates as (
    select
        setting_id, series, world_size, layout, layout_name, slot, position,
        ln(tokens_per_s) as log_rate,
        if(tokens_per_s_high is null, null, margin) as margin
    from ranking
    join (select setting_id, layout, slot from colours where slot < 7) using (setting_id, layout)
    qualify row_number() over (
        partition by setting_id, series, world_size, layout order by position
    ) = 1
),
leads as (
    select
        setting_id, series, world_size,
        a.layout as before_layout, b.layout as after_layout,
        a.layout_name as before_name, b.layout_name as after_name,
        a.slot as before_slot, b.slot as after_slot,
        a.position as before_position, b.position as after_position,
        a.log_rate - b.log_rate as lead,
        sqrt(a.margin ** 2 + b.margin ** 2) as margin
    from rates as a
    join rates as b using (setting_id, series, world_size)
    where a.layout != b.layout
),
steps as (
    select
        *,
        lead(world_size) over sizes as to_world_size,
        lead(lead) over sizes as to_lead,
        lead(margin) over sizes as to_margin,
        lead(after_position) over sizes as to_position
    from leads
    window sizes as (
        partition by setting_id, series, before_layout, after_layout order by world_size
    )
),
swaps as (
    select *, ln(to_world_size / world_size) as width, lead / (lead - to_lead) as meets_at
    from steps
    where lead > 0 and to_lead < 0
)
select
    setting_id, series,
    world_size as from_world_size,
    to_world_size, before_layout, before_name, before_slot, after_layout, after_name, after_slot,
    before_position = 1 and to_position = 1 as of_fastest,
    world_size * exp(width * meets_at) as crossing,
    world_size * exp(width * case
        when lead - margin <= 0 then 0
        else (lead - margin) / (lead - margin - (to_lead - to_margin))
    end) as crossing_low,
    world_size * exp(width * case
        when to_lead + to_margin >= 0 then 1
        else (lead + margin) / (lead + margin - (to_lead + to_margin))
    end) as crossing_high,
    lead > margin and -to_lead > to_margin as resolved
from swaps
order by setting_id, series, from_world_size, crossing, before_layout, after_layout
