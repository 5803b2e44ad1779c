-- Grain: one row per point of the study that has no valid row yet.
from planned_points
where point_id not in (
    select point_id from measurements where source != 'predicted'
)
