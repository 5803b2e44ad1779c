-- Grain: one row per setting and series with a layout that ran.
-- Needs: pooled_runs
-- How far rates are uncertain within a run and between runs. All ratios.
-- never_ran: layouts that were tried or predicted, and ran or fit at no size.
-- interval_half_width: half the 95 % interval of tokens_per_s, the median over layouts; of one run
-- where nothing was repeated.
-- repeat_half_spread: half the distance between the fastest and the slowest repeat, the median over
-- repeated_layouts; null if nothing was repeated.
-- repeat_sigma: standard deviation of ln(step time) between repeats of one layout, the median over
-- repeated_layouts, each divided by the median of what so few repeats show of it (Wilson and
-- Hilferty), so that a single odd run does not count.
select
    setting_id, series,
    count(tokens_per_s) as layouts,
    count(distinct layout) - count(distinct layout) filter (where tokens_per_s is not null)
        as never_ran,
    median((tokens_per_s_high - tokens_per_s_low) / 2 / tokens_per_s) as interval_half_width,
    count(*) filter (where ok_runs > 1) as repeated_layouts,
    median((fastest_repeat_tokens_per_s - slowest_repeat_tokens_per_s) / 2 / tokens_per_s)
        filter (where ok_runs > 1) as repeat_half_spread,
    any_value(repeat_sigma) as repeat_sigma
from pooled_runs
group by setting_id, series
having count(tokens_per_s) > 0
order by setting_id, series
