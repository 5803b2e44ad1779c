-- Grain: one row per setting, series, world_size, stack and two layouts that differ in one factor.
-- Needs: matched_pairs, names, factors
-- ratio: see matched_pairs. Factor 'tp against pp' keeps tp * pp and trades one for the other.
select
    matched_pairs.setting_id,
    series,
    world_size,
    stack_fingerprint,
    after_factor.factor,
    before_factor.level as from_level,
    after_factor.level as to_level,
    before_name.layout as from_layout,
    after_name.layout as to_layout,
    ratio
from matched_pairs
join names as before_name on before_name.layout_id = from_layout_id
join names as after_name on after_name.layout_id = to_layout_id
join factors as before_factor
    on before_factor.layout_id = from_layout_id
        and before_factor.factor_id = matched_pairs.factor_id
join factors as after_factor
    on after_factor.layout_id = to_layout_id and after_factor.factor_id = matched_pairs.factor_id
