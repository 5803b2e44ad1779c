-- Grain: one row per setting, series, world_size, stack and two layouts that differ in one factor.
-- Needs: matched_pairs, names, factor_levels
-- ratio: see matched_pairs. Factor 'tp against pp' keeps tp * pp and trades one for the other.
select
    matched_pairs.setting_id,
    series,
    world_size,
    stack_fingerprint,
    after_level.factor,
    before_level.level as from_level,
    after_level.level as to_level,
    before_name.layout as from_layout,
    after_name.layout as to_layout,
    ratio
from matched_pairs
join names as before_name on before_name.layout_id = from_layout_id
join names as after_name on after_name.layout_id = to_layout_id
join factor_levels as before_level
    on before_level.factor_id = matched_pairs.factor_id and before_level.place = from_place
join factor_levels as after_level
    on after_level.factor_id = matched_pairs.factor_id and after_level.place = to_place
