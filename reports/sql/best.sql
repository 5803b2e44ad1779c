-- Grain: one row per setting, series and world_size at which a layout ran: the fastest of them.
-- Needs: layouts, ranking, colours
-- The runner-up is the fastest other layout. tied: the intervals of the two overlap.
-- label: for a chart, what differs between the layouts that are fastest somewhere, lines parted
-- by |; only where the layout is not that of the size before, else null.
-- ideal_tokens_per_s: the rate per GPU at the smallest size, times world_size.
-- slowest_share: tokens_per_s of the slowest layout that ran, as a share of the fastest.
-- drawn: the charts show it; predictions only beyond the sizes at which something ran.
-- speed_up, efficiency: ratios to the smallest size that ran; efficiency is speed-up per GPU added.
with runner_up as (
    select second.*
    from ranking as second
    join ranking as first using (setting_id, series, world_size)
    where first.position = 1 and second.layout != first.layout
    qualify row_number() over (
        partition by setting_id, series, world_size order by second.position
    ) = 1
),
fastest as (
    select layouts.*
    from layouts
    join ranking using (setting_id, series, world_size, layout, stack_fingerprint)
    where ranking.position = 1
),
labelled as (
    select
        *,
        concat_ws(
            ' ',
            case when min(tp) over winners != max(tp) over winners then 'tp ' || tp end,
            case when min(pp) over winners != max(pp) over winners then 'pp ' || pp end,
            case when min(cp) over winners != max(cp) over winners then 'cp ' || cp end
        ) as degrees,
        concat_ws(
            ' ',
            case when min(pipeline_schedule) over winners != max(pipeline_schedule) over winners
                then pipeline_schedule end,
            case when min(zero_stage) over winners != max(zero_stage) over winners
                then 'Z' || zero_stage end,
            case when min(coalesce(zero_shard_size, 0)) over winners
                    != max(coalesce(zero_shard_size, 0)) over winners
                then coalesce('sh ' || zero_shard_size, 'no sh') end,
            case when min(optimizer_offload) over winners != max(optimizer_offload) over winners
                then if(optimizer_offload = 'none', 'no offload', 'offload') end,
            case when bool_or(sequence_parallel) over winners
                    and not bool_and(sequence_parallel) over winners
                then if(sequence_parallel, 'sp', 'no sp') end,
            case when min(micro_batch_size) over winners != max(micro_batch_size) over winners
                then 'mb ' || micro_batch_size end,
            case when min(activation_checkpointing) over winners
                    != max(activation_checkpointing) over winners
                then if(activation_checkpointing = 'none', 'no ckpt', 'ckpt') end,
            case when min(attention) over winners != max(attention) over winners
                then attention end,
            case when bool_or(fused_norm) over winners and not bool_and(fused_norm) over winners
                then if(fused_norm, 'fn', 'no fn') end,
            case when bool_or(fused_rope) over winners and not bool_and(fused_rope) over winners
                then if(fused_rope, 'fr', 'no fr') end,
            case when bool_or(fused_mlp) over winners and not bool_and(fused_mlp) over winners
                then if(fused_mlp, 'fm', 'no fm') end,
            case when bool_or(fused_cross_entropy) over winners
                    and not bool_and(fused_cross_entropy) over winners
                then if(fused_cross_entropy, 'fce', 'no fce') end,
            case when bool_or(compile) over winners and not bool_and(compile) over winners
                then if(compile, 'comp', 'no comp') end,
            case when min(precision) over winners != max(precision) over winners
                then precision end
        ) as choices
    from fastest
    window winners as (partition by setting_id)
)
select
    labelled.* exclude (degrees, choices),
    colours.slot,
    case when lag(labelled.layout) over sizes is distinct from labelled.layout then coalesce(
        nullif(concat_ws('|', nullif(degrees, ''), nullif(choices, '')), ''),
        labelled.layout_lines
    ) end as label,
    runner_up.layout as runner_up_layout,
    runner_up.layout_name as runner_up_layout_name,
    runner_up.stack_fingerprint as runner_up_stack_fingerprint,
    runner_up.tokens_per_s as runner_up_tokens_per_s,
    runner_up.tokens_per_s_low as runner_up_tokens_per_s_low,
    runner_up.tokens_per_s_high as runner_up_tokens_per_s_high,
    runner_up.within_noise as tied,
    first_value(labelled.tokens_per_s_per_gpu) over sizes * world_size as ideal_tokens_per_s,
    labelled.tokens_per_s / first_value(labelled.tokens_per_s) over sizes as speed_up,
    labelled.tokens_per_s / ideal_tokens_per_s as efficiency,
    field.slowest_share,
    labelled.series != 'predicted' or world_size > coalesce(
        max(world_size) filter (where labelled.series != 'predicted')
            over (partition by setting_id), 0
    ) as drawn
from labelled
join colours using (setting_id, layout)
left join runner_up using (setting_id, series, world_size)
join (
    select setting_id, series, world_size, min(share_of_best) as slowest_share
    from ranking
    group by setting_id, series, world_size
) as field using (setting_id, series, world_size)
window sizes as (partition by setting_id, series order by world_size)
order by setting_id, series, world_size
