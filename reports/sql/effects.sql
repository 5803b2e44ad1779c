-- Grain: one row per setting, series, factor and two of its levels.
-- Needs: pairs
-- mean_ratio: geometric mean of the pairs' throughput ratios; lowest, highest: their range;
-- ratio_at_smallest, ratio_at_largest: the mean at the smallest and largest size with pairs: how the
-- effect interacts with scale. lower_quartile, upper_quartile: of the ratios.
-- name: `micro-batch 2, against 1`.
-- shown: in the chart, of one series, the 14 that are largest or stand on most pairs.
with found as (
    select
        setting_id,
        series,
        factor,
        from_level,
        to_level,
        case when factor = 'tp against pp' then concat(to_level, ', against ', from_level)
            else concat(factor, ' ', to_level, ', against ', from_level) end as name,
        count(*) as pairs,
        exp(avg(ln(ratio))) as mean_ratio,
        min(ratio) as lowest,
        quantile_cont(ratio, 0.25) as lower_quartile,
        quantile_cont(ratio, 0.75) as upper_quartile,
        max(ratio) as highest,
        min(world_size) as smallest_world_size,
        exp(avg(ln(ratio)) filter (where world_size = smallest)) as ratio_at_smallest,
        max(world_size) as largest_world_size,
        exp(avg(ln(ratio)) filter (where world_size = largest)) as ratio_at_largest
    from (
        select
            *,
            min(world_size) over levels as smallest,
            max(world_size) over levels as largest
        from pairs
        window levels as (partition by setting_id, series, factor, from_level, to_level)
    )
    group by setting_id, series, factor, from_level, to_level
)
select
    *,
    series = case
        when bool_or(series = 'measured') over (partition by setting_id) then 'measured'
        when bool_or(series = 'published') over (partition by setting_id) then 'published'
        else 'predicted'
    end and row_number() over (
        partition by setting_id, series
        order by abs(ln(mean_ratio)) * sqrt(least(pairs, 16)) desc, name
    ) <= 14 as shown
from found
order by setting_id, series, mean_ratio desc, name
