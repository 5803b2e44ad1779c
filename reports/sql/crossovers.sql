-- Grain: one row per comparison group and neighbouring sizes whose advised layouts differ.
-- gain: tokens_per_s of the layout after over the layout before, at to_world_size, with its interval;
-- null if the layout before did not run there.
-- crossing: world_size at which the two lines through log throughput over log size meet, over the
-- draws in which they meet between these sizes; crossing_probability: the share of these draws.
-- Null unless both layouts ran at both sizes.
select
    drawn_crossings.*, one.layout_name as before_name, other.layout_name as after_name
from drawn_crossings
join names as one on one.group_id = drawn_crossings.group_id and one.layout = before_layout
join names as other on other.group_id = drawn_crossings.group_id and other.layout = after_layout
order by drawn_crossings.group_id, from_world_size
