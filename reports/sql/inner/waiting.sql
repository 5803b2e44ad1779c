-- Grain: one row per point of the study that has left no row.
-- Needs: planned, measurements
from planned
where point_id not in (
    select point_id from measurements where series != 'predicted' and not beside_measured
)
