-- Grain: one row per setting, series, world_size and stack with a layout that ran.
-- Needs: best_odds, names
-- How much the winner is flattered by having been chosen from many.
-- layout: the likeliest to be the fastest.   layouts: how many ran.   runs: of all of them together.
-- optimism: ratio by which the winner was measured faster than a new run of it is expected to be.
-- contenders: layouts whose order is not resolved.
select
    setting_id, series, world_size, stack_fingerprint,
    arg_max(layout, probability_best) as layout,
    arg_max(layout_name, probability_best) as layout_name,
    count(*) as layouts,
    sum(runs)::bigint as runs,
    count(*) filter (where contender) as contenders,
    max(probability_best) as probability_of_winner,
    any_value(between_run_sigma) as between_run_sigma,
    any_value(optimism) as optimism
from best_odds
join names using (setting_id, layout)
group by setting_id, series, world_size, stack_fingerprint
order by setting_id, series, world_size, stack_fingerprint
