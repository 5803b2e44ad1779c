-- Grain: one row per point that a guided sweep decided not to measure.
-- Needs: nothing
-- reason: why.   predicted_step_time_s, best_step_time_s: seconds predicted when the decision was
-- made, for this point and for the best of its size and setting.
select * exclude (chosen)
from study.skipped
order by world_size, model, cluster, predicted_step_time_s, point_id
