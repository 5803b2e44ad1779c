-- Grain: one row per setting, world_size, axis on which layouts differ, and level: its best layout.
-- Needs: contenders, differing_choices
-- A layout that ran goes before a predicted one. Where none ran or is predicted to: the first
-- failure, and no numbers.   name: the level in words, `micro-batch 2`.
-- tried, failed: layouts at that level.   compared: another level of the axis was tried at that
-- size.
-- least_memory_bytes: smallest peak of a layout that ran.
with best_places as (
    select
        setting_id, world_size, axis_order, differing_choices.place as level_order,
        any_value(axis) as axis,
        any_value(level) as level,
        count(distinct layout) as tried,
        count(distinct layout) filter (where outcome != 'ok') as failed,
        min(peak_memory_bytes) as least_memory_bytes,
        arg_min(contenders.place, if(outcome = 'ok', 0, 1e9) + contenders.place) as place
    from contenders
    join differing_choices using (setting_id, layout)
    where drawn and differing_choices.place is not null
    group by setting_id, world_size, axis_order, differing_choices.place
)
select
    setting_id, world_size, axis_order, axis, level_order, level, concat(axis, ' ', level) as name,
    tried, failed, least_memory_bytes,
    count(*) over (partition by setting_id, world_size, axis_order) > 1 as compared,
    contenders.series, contenders.outcome, contenders.layout_name, contenders.slot,
    contenders.tokens_per_s, contenders.tokens_per_s_low, contenders.tokens_per_s_high,
    contenders.tokens_per_s_per_gpu, contenders.mfu, contenders.model_flop_per_s_per_gpu,
    contenders.step_time_s, contenders.step_time_low_s, contenders.step_time_high_s,
    contenders.share_of_best
from best_places
join contenders using (setting_id, world_size, place)
order by setting_id, world_size, axis_order, level_order
