-- Grain: one row per setting, series, world_size, layout and stack that was tried or predicted.
-- Needs: layouts, ranking, colours
-- What charts and maps compare; everything else about a layout is in `layouts`.
-- drawn: the charts show it; a prediction only if the layout was not tried at that size.
-- position: 1 is the fastest; layouts that failed follow those that ran.
-- place: order in a chart; what ran or failed comes before what is predicted. A layout that ran full
-- steps beside short ones has the place of its extended step, and the measured one follows it.
-- slot: see `colours`.
with tried as (
    select distinct setting_id, world_size, layout from layouts where series != 'predicted'
),
with_positions as (  -- few columns, because windows carry all of them
    select
        layouts.setting_id, layouts.series, layouts.world_size, layouts.layout,
        layouts.stack_fingerprint,
        row_number() over (
            partition by layouts.setting_id, layouts.series, layouts.world_size
            order by ranking.position nulls last, layouts.layout, layouts.stack_fingerprint
        ) as position,
        ranking.share_of_best, ranking.within_noise, ranking.margin,
        layouts.series != 'predicted' or tried.layout is null as drawn
    from layouts
    left join ranking using (setting_id, series, world_size, layout, stack_fingerprint)
    left join tried using (setting_id, world_size, layout)
),
with_first_positions as (
    select
        *,
        list_position(getvariable('series_order'), series) as preference,
        arg_min(position, preference) over (
            partition by setting_id, world_size, layout, stack_fingerprint
        ) as first_position
    from with_positions
),
with_places as (
    select
        *,
        row_number() over (
            partition by setting_id, world_size
            order by not drawn, series = 'predicted', first_position, preference, position
        ) as place
    from with_first_positions
)
select
    layouts.setting_id, layouts.series, layouts.world_size, layouts.layout, layouts.layout_name,
    layouts.stack_fingerprint, layouts.outcome, layouts.error_message, layouts.runs,
    layouts.ok_runs, layouts.dp, layouts.tp, layouts.pp, layouts.cp, layouts.sequence_parallel,
    layouts.zero_stage, layouts.micro_batch_size, layouts.activation_checkpointing,
    layouts.precision, layouts.tokens_per_s, layouts.tokens_per_s_low, layouts.tokens_per_s_high,
    layouts.tokens_per_s_per_gpu, layouts.step_time_s, layouts.step_time_low_s,
    layouts.step_time_high_s, layouts.mfu, layouts.hfu, layouts.model_flop_per_s_per_gpu,
    layouts.peak_memory_bytes, layouts.predicted_memory_bytes, layouts.exposed_comm_s,
    colours.slot, position, share_of_best, within_noise, margin, drawn, place
from layouts
join with_places using (setting_id, series, world_size, layout, stack_fingerprint)
join colours using (setting_id, layout)
order by setting_id, world_size, place, series, position
