-- Grain: one row per layout of a setting and factor that may be compared: its axes, and tp against pp.
-- Needs: names, axes
-- place: orders the levels and tells them apart.   others: a hash of the layout's other axes and of
-- the factor; layouts with equal ones differ in this factor alone.
-- rank: an order in which layouts with equal `others` stand together, by place.
-- factor_id: the axis_order; 0 for 'tp against pp', which keeps tp * pp and trades one for the other.
with hashed as (
    -- all_axes: of every level, so that taking one out again leaves the key of all others; hashed
    -- twice, because hash(axis, level) alone is linear and differences of two would cancel
    select
        axes.*,
        names.layout_id,
        hash(hash(axis, if(place is null, null, level))) as own,
        bit_xor(own) over (partition by names.layout_id) as all_axes
    from axes
    join names using (setting_id, layout)
),
compared as (
    select
        layout_id, axis_order as factor_id, axis as factor, place, level,
        hash(axis_order, xor(all_axes, own)) as others
    from hashed
    where place is not null
    union all
    select
        layout_id, 0, 'tp against pp', tp.place * 1e6 + pp.place,
        concat('tp ', tp.level, ' pp ', pp.level),
        hash(0, xor(tp.all_axes, xor(tp.own, pp.own)), tp.place * pp.place)
    from hashed as tp
    join hashed as pp using (layout_id)
    where tp.axis = 'tp' and pp.axis = 'pp' and tp.place is not null and pp.place is not null
)
select *, row_number() over (order by others, place)::integer as rank
from compared
