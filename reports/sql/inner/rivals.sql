-- Grain: one row per setting, series, world_size and layout that may be advised or stands beside it.
-- Needs: ranking, coinciding
-- The 60 layouts of a setting and series that are most often not told apart from the fastest, at every
-- size at which they ran. good: may be advised: not told apart from the fastest, and of predictions no more
-- than the predictor's regret behind, for a wide interval excuses no slower layout. Layouts that coincide at a size have one rate there, the higher one.
with ran as (
    select
        setting_id, series, world_size, layout, tokens_per_s, share_of_best, margin,
        predicted_size_sigma, within_noise
    from ranking
),
called as (
    select * from ran
    union all by name
    select ran.* exclude (layout), coinciding.same as layout
    from ran
    join coinciding using (setting_id, world_size, layout)
),
joined as (
    select
        setting_id, series, world_size, layout,
        max(tokens_per_s) as tokens_per_s,
        max(share_of_best) as share_of_best,
        arg_max(margin, tokens_per_s) as margin,
        max(predicted_size_sigma) as predicted_size_sigma,
        bool_or(within_noise) as within_noise,
        bool_or(within_noise and (
            series != 'predicted' or share_of_best >= 1 / (1 + getvariable('predicted_floor'))
        )) as good
    from called
    group by setting_id, series, world_size, layout
),
near as (
    select setting_id, series, layout
    from joined
    group by setting_id, series, layout
    qualify row_number() over (
        partition by setting_id, series
        order by
            count(*) filter (where share_of_best = 1) > 0 desc,
            count(*) filter (where good) desc,
            count(*) filter (where within_noise) desc,
            avg(share_of_best) desc, layout
    ) <= 60
)
from joined
semi join near using (setting_id, series, layout)
