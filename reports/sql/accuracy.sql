-- Grain: one row per comparison group in which predictions can be held against points that ran or failed.
-- compared: points with a predicted rate and a measured or published one.
-- near: how many of them were predicted within 10 %.
-- median_error: median of |predicted / measured - 1| of tokens_per_s, a ratio.
-- predicted_from: the source of the predictions' parameters.
-- published: how many of `compared` others published.
-- unstated: axes, in words, that a publisher leaves unstated and the prediction assumes are not as
-- usual.
with predicted_points as (
    select
        group_id, source, predicted_from, unstated,
        abs(predicted_tokens_per_s / tokens_per_s - 1) as error
    from measurements
    join predicted_layouts using (group_id, world_size, layout)
    where source != 'predicted'
)
select
    group_id,
    count(error) as compared,
    count(*) filter (where error <= 0.1) as near,
    median(error) as median_error,
    list(distinct predicted_from order by predicted_from) filter (where error is not null)
        as predicted_from,
    count(error) filter (where source = 'published') as published,
    list_distinct(flatten(list(unstated) filter (where error is not null))) as unstated
from predicted_points
group by group_id
order by group_id
