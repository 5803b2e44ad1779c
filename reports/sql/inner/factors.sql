-- Grain: one row per layout of a comparison group and factor by which layouts are compared.
-- The factors are the axes on which layouts differ, and 'tp against pp', which trades one for the
-- other at equal tp * pp.   factor_id: the axis_order; 0 for 'tp against pp'.
-- place: identifies and orders the levels.
-- others: a hash of the factor and of the layout's choices on all other axes; two layouts with the
-- same value differ in this factor only.   rank: sorts layouts by `others`, then by place.
with hashed as (
    -- all_axes is the xor over the levels of all axes, so xor with one of them takes it out again.
    -- Hashed twice: hash(axis, level) alone is linear, and differences of two levels would cancel.
    select
        differing_choices.*,
        names.layout_id,
        hash(hash(axis, if(place is null, null, level))) as own_hash,
        bit_xor(own_hash) over (partition by names.layout_id) as all_axes
    from differing_choices
    join names using (group_id, layout)
),
levels as (
    select
        layout_id, axis_order as factor_id, axis as factor, place, level,
        hash(axis_order, xor(all_axes, own_hash)) as others
    from hashed
    where place is not null
    union all
    select
        layout_id, 0, 'tp against pp', tp.place * 1e6 + pp.place,
        concat('tp ', tp.level, ' pp ', pp.level),
        hash(0, xor(tp.all_axes, xor(tp.own_hash, pp.own_hash)), tp.place * pp.place)
    from hashed as tp
    join hashed as pp using (layout_id)
    where tp.axis = 'tp' and pp.axis = 'pp' and tp.place is not null and pp.place is not null
)
select *, row_number() over (order by others, place, layout_id)::integer as rank
from levels
