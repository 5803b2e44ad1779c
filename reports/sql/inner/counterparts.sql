-- Grain: one row per comparison group, world_size and published layout for which there is a matching prediction.
-- predicted_layout: the predicted layout that agrees with all the publisher states; what he does
-- not state (null) agrees with anything. If several agree, the one with the fewest unusual choices
-- on the unstated axes; no row if that is a tie.
-- unstated: unstated axes on which the predicted layout is not at the usual choice.
with layouts as (
    select distinct group_id, world_size, layout, source
    from measurements
    where source in ('published', 'predicted')
),
agreeing as (
    select
        published.group_id, published.world_size, published.layout,
        predicted.layout as predicted_layout,
        count(*) filter (where published_choice.value != predicted_choice.value) as disagreements,
        list(axes.axis order by axis_order) filter (
            where published_choice.value is null
                and predicted_choice.value is distinct from axes.usual
        ) as unstated
    from layouts as published
    join layouts as predicted using (group_id, world_size)
    join choices_by_axis as published_choice
        on published_choice.group_id = published.group_id
        and published_choice.layout = published.layout
    join choices_by_axis as predicted_choice
        on predicted_choice.group_id = published.group_id
        and predicted_choice.layout = predicted.layout
        and predicted_choice.name = published_choice.name
    join catalogue.axes as axes on axes.name = published_choice.name
    where published.source = 'published' and predicted.source = 'predicted'
    group by all
    having disagreements = 0
)
select group_id, world_size, layout, predicted_layout, unstated
from agreeing
window candidates as (
        partition by group_id, world_size, layout order by coalesce(len(unstated), 0)
    ),
    equally_usual as (partition by group_id, world_size, layout, len(unstated))
qualify rank() over candidates = 1 and count(*) over equally_usual = 1
