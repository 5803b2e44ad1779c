-- Grain: one row per setting, series and world_size at which the fixed layout ran.
-- Needs: rivals, advised, names, best
-- The fixed layout is the one advised at the smallest size. Where it coincides with another layout
-- it has that layout's rate.
-- share_of_best: what keeping it costs.   efficiency: how it scales by itself, against its smallest
-- size.
with fixed as (
    select setting_id, series, arg_min(layout, world_size) as layout
    from advised
    group by setting_id, series
)
select
    rivals.setting_id, rivals.series, rivals.world_size, names.layout, names.layout_name,
    rivals.tokens_per_s,
    rivals.tokens_per_s / rivals.world_size as tokens_per_s_per_gpu,
    rivals.share_of_best,
    rivals.tokens_per_s / rivals.world_size
        / first_value(rivals.tokens_per_s / rivals.world_size) over (
            partition by rivals.setting_id, rivals.series order by rivals.world_size
        ) as efficiency,
    best.drawn
from rivals
join fixed using (setting_id, series, layout)
join names using (setting_id, layout)
join best using (setting_id, series, world_size)
order by setting_id, series, world_size
