-- Grain: one row per setting, series, world_size, stack and two layouts that differ in one factor.
-- Needs: layouts, axes
-- ratio: tokens_per_s with to_level over tokens_per_s with from_level, all else equal (the batch
-- too: dp and accumulation follow). Levels are neighbours among those that ran beside each other.
-- Factor 'tp against pp' keeps tp * pp and trades one for the other.
with hashed as (
    -- all_axes: of every level, so that taking one out again leaves the key of all others; hashed
    -- twice, because hash(axis, level) alone is linear and differences of two would cancel
    select
        *,
        hash(hash(axis, if(place is null, null, level))) as own,
        bit_xor(own) over (partition by setting_id, layout) as all_axes
    from axes
),
traded as (
    select
        tp.setting_id, tp.layout, 'tp against pp' as factor, tp.place,
        concat('tp ', tp.level, ' pp ', pp.level) as level,
        xor(xor(tp.all_axes, xor(tp.own, pp.own)), hash(hash('tp x pp', tp.place * pp.place)))
            as others
    from hashed as tp
    join hashed as pp using (setting_id, layout)
    where tp.axis = 'tp' and pp.axis = 'pp'
),
factors as (
    select setting_id, layout, axis as factor, place, level, xor(all_axes, own) as others
    from hashed
    union all by name
    from traded
),
ran as (
    select
        setting_id, series, world_size, stack_fingerprint, layout, tokens_per_s,
        hash(setting_id, series, world_size, stack_fingerprint) as field
    from layouts
    where tokens_per_s is not null
)
select
    setting_id,
    series,
    world_size,
    stack_fingerprint,
    factor,
    lag(level) over matched as from_level,
    level as to_level,
    lag(layout) over matched as from_layout,
    layout as to_layout,
    tokens_per_s / lag(tokens_per_s) over matched as ratio
from ran
join factors using (setting_id, layout)
where place is not null
window matched as (partition by hash(field, factor, others) order by place)
qualify ratio is not null
