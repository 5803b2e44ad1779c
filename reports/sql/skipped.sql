-- Grain: one row per point that the rounds of a study did not measure.
-- reason: why, in the last round.   predicted_step_time_s: seconds, by what was measured before that
-- round.   expected_gain: on the best of its size, a ratio.
select * exclude (chosen, round)
from study.skipped
order by world_size, model, cluster, predicted_step_time_s, point_id
