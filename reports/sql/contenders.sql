-- Grain: one row per setting, series, world_size, layout and stack that was tried.
-- Needs: layouts, ranking, colours
-- drawn: the charts show it; a prediction only for a layout that was not tried at that size.
-- place: order in a chart, what ran or failed before what is predicted.
-- All else of a layout stands in `layouts`: here are the axes of the map and what is compared.
-- position: 1 is the fastest; those that failed follow those that ran.   slot: see colours.
with tried as (
    select distinct setting_id, world_size, layout from layouts where series != 'predicted'
),
judged as (  -- few columns: windows carry all they are given
    select
        layouts.setting_id, layouts.series, layouts.world_size, layouts.layout,
        layouts.stack_fingerprint,
        row_number() over (
            partition by layouts.setting_id, layouts.series, layouts.world_size
            order by ranking.position nulls last, layouts.layout, layouts.stack_fingerprint
        ) as position,
        ranking.share_of_best,
        ranking.within_noise,
        ranking.margin,
        layouts.series != 'predicted' or tried.layout is null as drawn
    from layouts
    left join ranking using (setting_id, series, world_size, layout, stack_fingerprint)
    left join tried using (setting_id, world_size, layout)
),
placed as (
    select
        *,
        row_number() over (
            partition by setting_id, world_size order by not drawn, series = 'predicted', position
        ) as place
    from judged
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
join placed using (setting_id, series, world_size, layout, stack_fingerprint)
join colours using (setting_id, layout)
