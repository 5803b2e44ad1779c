-- Grain: one row per setting, layout that the decision is between, and world_size that was tried.
-- Needs: advised, rivals, ranking, layouts, coinciding, names, axes, colours
-- Of one series, the first of series_order (scaling/analyse/series.py).
-- role: advised somewhere; else simplest (least tp x pp x cp, then the fewest choices to say, of those
-- that ran at the most sizes); else contender, those that come closest at most sizes, six rows with all.
-- outcome: of the layout there, also where it ran as the layout it coincides with; null: not tried.
-- share_of_best: ratio of tokens_per_s to the fastest of the size, with the interval of that ratio.
-- within_noise: not told apart from the fastest.   place: order of the rows.
-- The axes: what the layout chooses on each.
with spoken as (
    select setting_id, series
    from layouts
    group by setting_id, series
    qualify row_number() over (
        partition by setting_id order by list_position(getvariable('series_order'), series)
    ) = 1
),
sizes as (
    select distinct setting_id, series, world_size
    from layouts
    semi join spoken using (setting_id, series)
),
standing as (
    select setting_id, series, layout, count(*) as ran, avg(share_of_best) as mean_share,
        count(*) filter (where within_noise) as ties
    from rivals
    semi join spoken using (setting_id, series)
    group by setting_id, series, layout
),
spelled as (
    select names.*, count(axes.words) as choices_said
    from names
    left join axes using (setting_id, layout)
    group by all
),
plainest as (
    select standing.setting_id, standing.layout
    from standing
    join spelled using (setting_id, layout)
    qualify row_number() over (
        partition by standing.setting_id
        order by ran desc, spelled.tp * spelled.pp * spelled.cp, choices_said, mean_share desc,
            standing.layout
    ) = 1
),
roles as (
    select
        setting_id, series, layout,
        min(advised.world_size) as advised_from,
        any_value(plainest.layout) is not null as plain,
        any_value(ties) as ties,
        any_value(mean_share) as mean_share
    from standing
    left join advised using (setting_id, series, layout)
    left join plainest using (setting_id, layout)
    group by setting_id, series, layout
),
chosen as (
    select
        setting_id, series, layout,
        case
            when advised_from is not null then 'advised'
            when plain then 'simplest'
            else 'contender'
        end as role,
        row_number() over (
            partition by setting_id
            order by advised_from nulls last, not plain, ties desc, mean_share desc, layout
        ) as place
    from roles
    qualify place <= 6 or advised_from is not null
),
called as (
    select setting_id, series, world_size, layout, outcome from layouts
    union all
    select setting_id, series, world_size, same as layout, outcome
    from layouts
    join coinciding using (setting_id, world_size, layout)
),
became as (
    select setting_id, series, world_size, layout, arg_min(outcome, outcome != 'ok') as outcome
    from called
    group by setting_id, series, world_size, layout
),
fastest as (
    select setting_id, series, world_size, margin as best_margin
    from ranking
    where position = 1
)
select
    chosen.setting_id, chosen.series, chosen.layout, names.layout_name, colours.slot, role, place,
    sizes.world_size, outcome,
    rivals.share_of_best,
    sqrt(margin ** 2 + best_margin ** 2) as share_margin,
    if(rivals.share_of_best < 1, rivals.share_of_best / exp(share_margin), 1) as share_low,
    if(rivals.share_of_best < 1, rivals.share_of_best * exp(share_margin), 1) as share_high,
    rivals.within_noise,
    advised.layout is not null as advised,
    names.* exclude (setting_id, layout, layout_id, layout_name, layout_lines)
from chosen
join sizes using (setting_id, series)
join names using (setting_id, layout)
join colours using (setting_id, layout)
left join became using (setting_id, series, world_size, layout)
left join rivals using (setting_id, series, world_size, layout)
left join fastest using (setting_id, series, world_size)
left join advised using (setting_id, series, world_size, layout)
order by chosen.setting_id, place, sizes.world_size
