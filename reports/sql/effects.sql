-- Grain: one row per comparison group, source, factor and two of its levels: what the change of level is worth.
-- mean_ratio: geometric mean of the throughput ratios of the pairs (see `pairs`). lowest,
-- highest: of these ratios.
-- near_ratio: mean over near_pairs, the pairs near the fastest layouts (see `matched_pairs`): what
-- the choice is worth where it matters. near_low, near_high: its interval of `level`, by the errors of
-- these pairs' rates.
-- source: measured (short steps too), published or predicted.
-- memory_ratio: mean ratio of memory.
-- name: for example `micro-batch 2, against 1`.
-- shown: in the chart: of one source, of the effects with at least 3 pairs, the 14 that are largest
-- near the fastest layouts and rest on most pairs; where no pair is near, all pairs count.
with aggregated as (
    select
        group_id, class, effect_id, factor_id, from_place, to_place,
        count(*) as pairs,
        exp(avg(ln(ratio) order by ratio)) as mean_ratio,
        min(ratio) as lowest,
        max(ratio) as highest,
        count(*) filter (where near) as near_pairs,
        exp(avg(ln(memory_ratio) order by memory_ratio)) as memory_ratio
    from matched_pairs
    group by group_id, class, effect_id, factor_id, from_place, to_place
),
described as (
    select
        group_id, class, ['measured', 'published', 'predicted'][class] as source,
        after_level.factor,
        before_level.level as from_level,
        after_level.level as to_level,
        concat(
            if(factor_id = 0, null, after_level.factor || ' '), to_level, ', against ', from_level
        ) as name,
        pairs, mean_ratio, lowest, highest,
        near_pairs, effect_ratios.ratio as near_ratio, ratio_low as near_low,
        ratio_high as near_high, effect_ratios.level, memory_ratio,
        factor_id, from_place, to_place
    from aggregated
    left join effect_ratios using (group_id, effect_id)
    join factor_levels as before_level using (factor_id)
    join factor_levels as after_level using (factor_id)
    where before_level.place = from_place and after_level.place = to_place
)
select
    * exclude (class),
    pairs >= 3 and class = min(class) over (partition by group_id) and row_number() over (
        partition by group_id, class
        order by pairs >= 3 desc, near_pairs > 0 desc,
            abs(ln(coalesce(near_ratio, mean_ratio)))
                * sqrt(least(if(near_pairs > 0, near_pairs, pairs), 16)) desc,
            name
    ) <= 14 as shown
from described
order by group_id, source, mean_ratio desc, name
