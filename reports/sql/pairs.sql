-- Grain: one row per comparison group, size and two layouts that differ in one factor only.
-- ratio: tokens_per_s at to_level over that at from_level, all else equal.
-- factor: an axis, or 'tp against pp', which trades one for the other at equal tp * pp.
select
    matched_pairs.group_id, ['measured', 'published', 'predicted'][class] as source, world_size,
    stack_fingerprint, to_levels.factor,
    from_levels.level as from_level,
    to_levels.level as to_level,
    from_names.layout as from_layout,
    to_names.layout as to_layout,
    ratio
from matched_pairs
join names as from_names on from_names.layout_id = from_layout_id
join names as to_names on to_names.layout_id = to_layout_id
join factor_levels as from_levels
    on from_levels.factor_id = matched_pairs.factor_id and from_levels.place = from_place
join factor_levels as to_levels
    on to_levels.factor_id = matched_pairs.factor_id and to_levels.place = to_place
order by group_id, source, world_size, factor, from_layout, to_layout, stack_fingerprint
