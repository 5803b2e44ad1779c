-- Grain: one row per setting, series, world_size and stack with a layout that ran.
-- Needs: best_odds
-- optimism: ratio; the winner of so many is measured so much faster than it is to be expected again.
-- contenders: layouts whose order is not resolved.   runs: of all layouts together.
select
    setting_id, series, world_size, stack_fingerprint,
    count(*) as layouts,
    sum(runs)::bigint as runs,
    count(*) filter (where contender) as contenders,
    max(probability_best) as probability_of_winner,
    any_value(between_run_sigma) as between_run_sigma,
    any_value(optimism) as optimism
from best_odds
group by setting_id, series, world_size, stack_fingerprint
order by setting_id, series, world_size, stack_fingerprint
