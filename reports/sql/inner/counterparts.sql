-- Grain: one row per setting, world_size and layout that others published there, where a prediction is its.
-- Needs: measurements, listed_choices
-- predicted_layout: the layout of a prediction that is the same as far as the publisher says: what a
-- row does not state (null) agrees with anything, and of several that agree it is the one whose choices
-- there are the usual ones; none where that leaves more than one.
-- unstated: the axes of which the publisher says nothing and the prediction chooses what is not usual.
with layouts as (
    select distinct setting_id, world_size, layout, series
    from measurements
    where series in ('published', 'predicted')
),
compared as (
    select
        theirs.setting_id, theirs.world_size, theirs.layout, ours.layout as predicted_layout,
        count(*) filter (where stated.value != predicted.value) as unlike,
        list(axes.axis order by axis_order) filter (
            where stated.value is null and predicted.value is distinct from axes.usual
        ) as unstated
    from layouts as theirs
    join layouts as ours using (setting_id, world_size)
    join listed_choices as stated
        on stated.setting_id = theirs.setting_id and stated.layout = theirs.layout
    join listed_choices as predicted
        on predicted.setting_id = theirs.setting_id and predicted.layout = ours.layout
        and predicted.name = stated.name
    join catalogue.axes as axes on axes.name = stated.name
    where theirs.series = 'published' and ours.series = 'predicted'
    group by all
    having unlike = 0
)
select setting_id, world_size, layout, predicted_layout, unstated
from compared
window alike as (partition by setting_id, world_size, layout, len(unstated)),
    near as (partition by setting_id, world_size, layout order by coalesce(len(unstated), 0))
qualify rank() over near = 1 and count(*) over alike = 1
