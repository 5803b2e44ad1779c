-- Grain: one row per factor (see `factors`) and level.
select factor_id, place, any_value(factor) as factor, any_value(level) as level
from factors
group by factor_id, place
