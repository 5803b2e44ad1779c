-- Grain: one row per setting, series, world_size and layout that is considered for the advice.
-- Needs: ranking, coinciding
-- Per setting and series the 60 layouts that are most often not told apart from the fastest, at
-- every size at which they ran. Layouts that coincide at a size share the higher of their rates
-- there.
-- advisable: not told apart from the fastest; a prediction must also be within the predictor's
-- regret of it, because its wide interval excuses no slower layout.
with ran as (
    select
        setting_id, series, world_size, layout, tokens_per_s, share_of_best, margin,
        predicted_size_sigma, within_noise
    from ranking
),
with_aliases as (  -- each layout also under the names of those that coincide with it
    select * from ran
    union all by name
    select ran.* exclude (layout), coinciding.same_as as layout
    from ran
    join coinciding using (setting_id, world_size, layout)
),
merged as (
    select
        setting_id, series, world_size, layout,
        max(tokens_per_s) as tokens_per_s,
        max(share_of_best) as share_of_best,
        arg_max(margin, tokens_per_s) as margin,
        max(predicted_size_sigma) as predicted_size_sigma,
        bool_or(within_noise) as within_noise,
        bool_or(within_noise and (
            series != 'predicted' or share_of_best >= 1 / (1 + getvariable('predicted_floor'))
        )) as advisable
    from with_aliases
    group by setting_id, series, world_size, layout
),
closest_layouts as (
    select setting_id, series, layout
    from merged
    group by setting_id, series, layout
    qualify row_number() over (
        partition by setting_id, series
        order by
            count(*) filter (where share_of_best = 1) > 0 desc,
            count(*) filter (where advisable) desc,
            count(*) filter (where within_noise) desc,
            avg(share_of_best) desc, layout
    ) <= 60
)
from merged
semi join closest_layouts using (setting_id, series, layout)
