-- Grain: one row per setting in which predictions stand against rows that ran or failed.
-- Needs: measurements, predicted_layouts
-- compared: points with a measured or published rate and a predicted one.   near: of them within 10 %.
-- median_error: of |predicted / measured - 1| of tokens_per_s, a ratio.
-- judged: points that ran or were out of memory and of which a prediction says one or the other;
-- told_right: how many it says right.   predicted_from: what the predictions' parameters are from.
-- published: of compared, points of others; unstated: what some of them leave open that the
-- predictions beside them choose in another way than usual, in words.
with held as (
    select
        setting_id, series, outcome, predicted_outcome, predicted_from, unstated,
        abs(predicted_tokens_per_s / tokens_per_s - 1) as error
    from measurements
    join predicted_layouts using (setting_id, world_size, layout)
    where series != 'predicted' and not beside_measured
)
select
    setting_id,
    count(error) as compared,
    count(*) filter (where error <= 0.1) as near,
    median(error) as median_error,
    count(*) filter (where outcome in ('ok', 'oom')) as judged,
    count(*) filter (where outcome in ('ok', 'oom') and outcome = predicted_outcome) as told_right,
    list(distinct predicted_from order by predicted_from) filter (where error is not null)
        as predicted_from,
    count(error) filter (where series = 'published') as published,
    list_distinct(flatten(list(unstated) filter (where error is not null))) as unstated
from held
group by setting_id
order by setting_id
