-- Grain: one row per setting, series, world_size, layout and stack that ran.
-- Needs: best_odds
-- probability_best: that it is the fastest of its size, by what was measured, each run's own interval
-- and the spread between runs.   contender: its order is not resolved (between 5 and 95 %).
-- between_run_sigma: standard deviation of ln step time between runs of one layout, from repeats here
-- and, as far as there are few, from published ones (0.7 %).
select * exclude (optimism)
from best_odds
order by setting_id, series, world_size, probability_best desc, layout, stack_fingerprint
