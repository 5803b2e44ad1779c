-- Grain: one row per setting, layout among which the decision is, and world_size that was tried.
-- Needs: advised, rivals, ranking, layouts, coinciding, names, differing_choices, colours
-- Of one series per setting, the first of series_order (scaling/analyse/series.py) in which a layout
-- ran; where none ran, the first.
-- role: 'advised' at some size; else 'simplest': of the layouts that ran at the most sizes the one
-- with the least tp x pp x cp, then with the fewest choices to name; else 'contender': within the
-- noise of the fastest at most sizes. Contenders fill up to six layouts; one that coincides with an
-- advised layout at every size is none.   place: order of the layouts.
-- outcome: of the layout there, or of a layout that it coincides with there; null: not tried.
-- share_of_best: tokens_per_s as a share of the fastest of the size; share_low, share_high: its
-- interval.
-- within_noise: not told apart from the fastest.   The axes: what the layout chooses on each.
with leading_series as (
    select setting_id, series
    from layouts
    group by setting_id, series
    qualify row_number() over (
        partition by setting_id
        order by
            bool_or(outcome = 'ok') and series != 'predicted' desc,
            list_position(getvariable('series_order'), series)
    ) = 1
),
sizes as (
    select distinct setting_id, series, world_size
    from layouts
    semi join leading_series using (setting_id, series)
),
standings as (
    select setting_id, series, layout, count(*) as sizes_ran,
        -- rounded: threads add up in any order, and equal layouts must keep their places
        round(avg(share_of_best), 9) as mean_share,
        count(*) filter (where within_noise) as ties
    from rivals
    semi join leading_series using (setting_id, series)
    group by setting_id, series, layout
),
named_layouts as (
    select names.*, count(differing_choices.words) as named_choices
    from names
    left join differing_choices using (setting_id, layout)
    group by all
),
simplest as (
    select standings.setting_id, standings.layout
    from standings
    join named_layouts using (setting_id, layout)
    qualify row_number() over (
        partition by standings.setting_id
        order by sizes_ran desc, named_layouts.tp * named_layouts.pp * named_layouts.cp,
            named_choices, mean_share desc, standings.layout
    ) = 1
),
same_as_advised as (
    select rivals.setting_id, rivals.series, rivals.layout
    from rivals
    join (select distinct setting_id, series, layout from advised) as advised
        using (setting_id, series)
    left join coinciding on coinciding.setting_id = rivals.setting_id
        and coinciding.world_size = rivals.world_size
        and coinciding.layout = rivals.layout
        and coinciding.same_as = advised.layout
    group by rivals.setting_id, rivals.series, rivals.layout, advised.layout
    having bool_and(coinciding.layout is not null)
),
candidates as (
    select
        setting_id, series, layout,
        min(advised.world_size) as advised_from,
        any_value(simplest.layout) is not null as is_simplest,
        any_value(ties) as ties,
        any_value(mean_share) as mean_share
    from standings
    left join advised using (setting_id, series, layout)
    left join simplest using (setting_id, layout)
    anti join same_as_advised using (setting_id, series, layout)
    group by setting_id, series, layout
),
roles as (
    select
        setting_id, series, layout,
        case
            when advised_from is not null then 'advised'
            when is_simplest then 'simplest'
            else 'contender'
        end as role,
        row_number() over (
            partition by setting_id
            order by advised_from nulls last, not is_simplest, ties desc, mean_share desc, layout
        ) as place
    from candidates
    qualify place <= 6 or advised_from is not null
),
outcomes as (
    select
        setting_id, series, world_size, layout,
        arg_min(outcome, if(outcome = 'ok', '', outcome)) as outcome
    from (
        select setting_id, series, world_size, layout, outcome from layouts
        union all
        select setting_id, series, world_size, same_as as layout, outcome
        from layouts
        join coinciding using (setting_id, world_size, layout)
    )
    group by setting_id, series, world_size, layout
),
fastest as (
    select setting_id, series, world_size, margin as best_margin
    from ranking
    where position = 1
)
select
    roles.setting_id, roles.series, roles.layout, names.layout_name, colours.slot, role, place,
    sizes.world_size, outcome,
    rivals.share_of_best,
    sqrt(margin ** 2 + best_margin ** 2) as share_margin,
    if(rivals.share_of_best < 1, rivals.share_of_best / exp(share_margin), 1) as share_low,
    if(rivals.share_of_best < 1, rivals.share_of_best * exp(share_margin), 1) as share_high,
    rivals.within_noise,
    advised.layout is not null as advised,
    names.* exclude (setting_id, layout, layout_id, layout_name, layout_lines)
from roles
join sizes using (setting_id, series)
join names using (setting_id, layout)
join colours using (setting_id, layout)
left join outcomes using (setting_id, series, world_size, layout)
left join rivals using (setting_id, series, world_size, layout)
left join fastest using (setting_id, series, world_size)
left join advised using (setting_id, series, world_size, layout)
order by roles.setting_id, place, sizes.world_size
