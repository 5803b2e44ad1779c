-- Grain: one row per effect (see `effects`), other axis, and level of that axis.
-- Needs: matched_pairs, names, differing_choices, effects
-- How an effect depends on the rest of the layout.
-- mean_ratio: geometric mean over the pairs whose layouts have that level.   pairs: how many.
-- worth: the effect over all levels, near the fastest layouts if there are such pairs.
-- strength: largest mean_ratio over smallest among the levels of the axis.
-- shown: in the chart: of the effects shown there, the 8 strongest interactions whose every level
-- has at least 3 pairs.
with layout_totals as (  -- aggregated by layout first, because every pair has a dozen axes
    select
        setting_id, series, factor_id, from_place, to_place, to_layout_id as layout_id,
        count(*) as pairs,
        sum(ln(ratio)) as log_ratios
    from matched_pairs
    group by all
),
choices_by_id as (
    select layout_id, axis_order, axis, place, level
    from differing_choices
    join names using (setting_id, layout)
),
level_means as (
    select
        setting_id, series, factor_id, from_place, to_place, axis_order, axis, place, level,
        sum(pairs)::bigint as pairs,
        exp(sum(log_ratios) / sum(pairs)) as mean_ratio
    from layout_totals
    join choices_by_id using (layout_id)
    where axis_order != factor_id and place is not null
        and not (factor_id = 0 and axis in ('tp', 'pp'))
    group by all
),
interactions as (
    select
        *,
        max(mean_ratio) over levels / min(mean_ratio) over levels as strength,
        min(pairs) over levels as fewest_pairs
    from level_means
    window levels as (
        partition by setting_id, series, factor_id, from_place, to_place, axis_order
    )
    qualify count(*) over levels > 1
),
ranked as (
    select
        interactions.*,
        dense_rank() over (
            partition by setting_id, series
            order by effects.shown desc, fewest_pairs >= 3 desc, strength desc, factor_id,
                from_place, to_place, axis_order
        ) as rank,
        effects.shown and fewest_pairs >= 3 and rank <= 8 as shown,
        effects.name,
        coalesce(effects.near_ratio, effects.mean_ratio) as worth
    from interactions
    join effects using (setting_id, series, factor_id, from_place, to_place)
)
select
    setting_id, series, name, axis, level, place as level_order, pairs, mean_ratio, worth, strength,
    concat(name, ' · by ', axis) as title, rank, shown
from ranked
order by setting_id, series, rank, level_order
