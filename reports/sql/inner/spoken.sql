-- Grain: one row per setting and world_size that the charts draw: the best of one series.
-- Needs: best
-- Of several series that ran at a size it is the one that the report speaks of.
from best
where drawn
qualify row_number() over (
    partition by setting_id, world_size
    order by list_position(getvariable('series_order'), series)
) = 1
