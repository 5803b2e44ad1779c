-- Grain: one row per setting, series, world_size, layout and stack that ran.
-- Needs: best_odds
-- probability_best: that the layout is the fastest of its size, given the measured rates, the
-- interval of each run and the spread between runs.
-- contender: the order is not resolved (probability between 5 and 95 %).
-- between_run_sigma: standard deviation of ln step time between runs of one layout, from the
-- repeats here and, while these are few, from published ones (0.7 %).
select * exclude (optimism)
from best_odds
order by setting_id, series, world_size, probability_best desc, layout, stack_fingerprint
