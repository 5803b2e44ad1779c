-- Grain: one row per comparison group and neighbouring sizes whose advised layouts differ.
-- gain: tokens_per_s of the layout after over the layout before, at to_world_size, with its interval;
-- null if the layout before did not run there.
-- crossing: world_size at which the two lines through log throughput over log size meet, over the
-- draws in which they meet between these sizes; crossing_probability: the share of these draws.
-- Null unless both layouts ran at both sizes.
with layouts as (
    select group_id, layout, any_value(layout_name) as layout_name, any_value(slot) as slot
    from estimates
    group by group_id, layout
)
select
    drawn_crossings.*,
    before_layouts.layout_name as before_name, before_layouts.slot as before_slot,
    after_layouts.layout_name as after_name, after_layouts.slot as after_slot
from drawn_crossings
join layouts as before_layouts on before_layouts.group_id = drawn_crossings.group_id
    and before_layouts.layout = before_layout
join layouts as after_layouts on after_layouts.group_id = drawn_crossings.group_id
    and after_layouts.layout = after_layout
order by drawn_crossings.group_id, from_world_size
