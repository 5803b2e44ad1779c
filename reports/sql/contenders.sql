-- Grain: one row per setting, series, world_size, layout and stack that was tried.
-- Needs: layouts, ranking, colours
-- drawn: the charts show it; a prediction only for a layout that was not tried at that size.
-- place: order in a chart, what ran or failed before what is predicted.
-- All else of a layout stands in `layouts`.
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
    layouts.* exclude (
        layout_id, layout_lines, zero_shard_size, optimizer_offload, pipeline_schedule, attention,
        fused_norm, fused_rope, fused_mlp, fused_cross_entropy, compile, global_batch_size,
        gradient_accumulation_steps, tokens_per_step, slowest_repeat_tokens_per_s,
        fastest_repeat_tokens_per_s, hardware_flop_per_s_per_gpu, memory_meter, energy_j,
        mean_power_w, compute_s, comm_s, idle_s
    ),
    colours.slot, position, share_of_best, within_noise, drawn, place
from layouts
join placed using (setting_id, series, world_size, layout, stack_fingerprint)
join colours using (setting_id, layout)
