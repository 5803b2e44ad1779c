-- Grain: one row per effect (see effects), other axis and its level.
-- Needs: matched_pairs, names, axes, effects
-- mean_ratio: of the pairs whose layouts have that level, geometric; pairs: how many.
-- strength: how far the mean moves over the levels of the axis, as a ratio.
-- shown: in the chart, of the effects it shows: the 8 strongest whose every level has at least 3 pairs.
with by_layout as (  -- sizes first: every pair has a dozen axes
    select
        setting_id, series, factor_id, from_place, to_place, to_layout_id as layout_id,
        count(*) as pairs,
        sum(ln(ratio)) as total
    from matched_pairs
    group by all
),
numbered as (
    select layout_id, axis_order, axis, place, level
    from axes
    join names using (setting_id, layout)
),
told as (
    select
        setting_id, series, factor_id, from_place, to_place, axis_order, axis, place, level,
        sum(pairs)::bigint as pairs,
        exp(sum(total) / sum(pairs)) as mean_ratio
    from by_layout
    join numbered using (layout_id)
    where axis_order != factor_id and place is not null
        and not (factor_id = 0 and axis in ('tp', 'pp'))
    group by all
),
judged as (
    select
        *,
        max(mean_ratio) over other / min(mean_ratio) over other as strength,
        min(pairs) over other as fewest_pairs
    from told
    window other as (partition by setting_id, series, factor_id, from_place, to_place, axis_order)
    qualify count(*) over other > 1
),
ranked as (
    select
        *,
        dense_rank() over (
            partition by setting_id, series
            order by fewest_pairs >= 3 desc, strength desc, factor_id, from_place, to_place, axis_order
        ) as rank
    from judged
)
select
    setting_id, series, effects.name, axis, level, place as level_order, ranked.pairs,
    ranked.mean_ratio, coalesce(effects.near_ratio, effects.mean_ratio) as worth, strength, concat(effects.name, ' · by ', axis) as title, rank,
    effects.shown and fewest_pairs >= 3 and rank <= 8 and series = arg_min(series, list_position(getvariable('series_order'), series))
        over (partition by setting_id) as shown
from ranked
join effects using (setting_id, series, factor_id, from_place, to_place)
order by setting_id, series, rank, level_order
