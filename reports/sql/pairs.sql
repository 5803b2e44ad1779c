-- Grain: one row per setting, series, world_size, stack and two layouts that differ in one factor.
-- Needs: layouts
-- ratio: tokens_per_s with to_level over tokens_per_s with from_level, all else equal (the batch
-- too: dp and accumulation follow). Levels are neighbours among those that ran beside each other.
-- Factor 'tp against pp' keeps tp * pp and trades one for the other.
with levels as (
    -- every axis of a layout once: place orders its levels
    select
        setting_id, series, world_size, stack_fingerprint, layout, tokens_per_s, tp, pp,
        unnest([
            {'factor': 'tp', 'place': tp::double, 'level': tp::varchar},
            {'factor': 'pp', 'place': pp::double, 'level': pp::varchar},
            {'factor': 'cp', 'place': cp::double, 'level': cp::varchar},
            {'factor': 'schedule', 'place': list_position(['1f1b', 'dualpipev'], pipeline_schedule)::double,
                'level': pipeline_schedule},
            {'factor': 'ZeRO', 'place': zero_stage::double, 'level': zero_stage::varchar},
            {'factor': 'ZeRO shard', 'place': coalesce(zero_shard_size, dp)::double,
                'level': coalesce(zero_shard_size::varchar, 'all')},
            {'factor': 'optimizer offload', 'place': list_position(['none', 'cpu'], optimizer_offload)::double,
                'level': optimizer_offload},
            {'factor': 'sequence parallel', 'place': sequence_parallel::double,
                'level': if(sequence_parallel, 'on', 'off')},
            {'factor': 'micro-batch', 'place': micro_batch_size::double,
                'level': micro_batch_size::varchar},
            {'factor': 'checkpointing',
                'place': list_position(['none', 'selective', 'full'], activation_checkpointing)::double,
                'level': activation_checkpointing},
            {'factor': 'attention', 'place': list_position(['math', 'fused_softmax', 'flash1',
                'flash2', 'flash3', 'flash4', 'cudnn'], attention)::double, 'level': attention},
            {'factor': 'fused norm', 'place': fused_norm::double,
                'level': if(fused_norm, 'on', 'off')},
            {'factor': 'fused rope', 'place': fused_rope::double,
                'level': if(fused_rope, 'on', 'off')},
            {'factor': 'fused mlp', 'place': fused_mlp::double,
                'level': if(fused_mlp, 'on', 'off')},
            {'factor': 'fused cross-entropy', 'place': fused_cross_entropy::double,
                'level': if(fused_cross_entropy, 'on', 'off')},
            {'factor': 'compile', 'place': compile::double, 'level': if(compile, 'on', 'off')},
            {'factor': 'precision',
                'place': list_position(['fp32', 'fp16', 'bf16', 'fp8'], precision)::double,
                'level': precision}
        ], recursive := true)
    from layouts
    where tokens_per_s is not null
),
keyed as (
    -- all_axes: of every level, so that taking one out again leaves the key of all others; hashed
    -- twice, because hash(factor, level) alone is linear and differences of two would cancel
    select
        *,
        hash(hash(factor, if(place is null, null, level))) as own,
        bit_xor(own) over (
            partition by setting_id, series, world_size, stack_fingerprint, layout
        ) as all_axes
    from levels
),
varied as (
    select setting_id, factor
    from keyed
    group by setting_id, factor
    having min(place) != max(place)
),
choices as (
    select keyed.*, xor(all_axes, own) as others
    from keyed
    semi join varied using (setting_id, factor)
    where place is not null
    union all by name
    select
        keyed.* replace (
            'tp against pp' as factor, concat('tp ', tp, ' pp ', pp) as level
        ),
        xor(
            xor(xor(all_axes, own), hash(hash('pp', pp::varchar))),
            hash(hash('tp x pp', (tp * pp)::varchar))
        ) as others
    from keyed
    where factor = 'tp' and tp is not null and pp is not null
        and setting_id in (select setting_id from varied where factor = 'tp')
        and setting_id in (select setting_id from varied where factor = 'pp')
)
select
    setting_id,
    series,
    world_size,
    stack_fingerprint,
    factor,
    lag(level) over matched as from_level,
    level as to_level,
    lag(layout) over matched as from_layout,
    layout as to_layout,
    tokens_per_s / lag(tokens_per_s) over matched as ratio
from choices
window matched as (
    partition by setting_id, series, world_size, stack_fingerprint, factor, others
    order by place
)
qualify ratio is not null
