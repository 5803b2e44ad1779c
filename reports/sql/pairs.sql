-- Grain: one row per setting, series, world_size, stack and two layouts that differ in one factor.
-- Needs: layouts
-- ratio: tokens_per_s with to_level over tokens_per_s with from_level, all else equal (the batch
-- too: dp and accumulation follow). Levels are neighbours among those that ran beside each other.
-- Factor 'tp against pp' keeps tp * pp and trades one for the other.
with ran as (
    from layouts where tokens_per_s is not null
),
choices as (
    select
        setting_id, series, world_size, stack_fingerprint, layout_name, tokens_per_s,
        unnest([
            {'factor': 'tp', 'place': tp::double, 'level': tp::varchar,
                'others': hash(pp, cp, zero_stage, sequence_parallel, micro_batch_size,
                    activation_checkpointing, attention, fused_norm, precision)},
            {'factor': 'pp', 'place': pp::double, 'level': pp::varchar,
                'others': hash(tp, cp, zero_stage, sequence_parallel, micro_batch_size,
                    activation_checkpointing, attention, fused_norm, precision)},
            {'factor': 'cp', 'place': cp::double, 'level': cp::varchar,
                'others': hash(tp, pp, zero_stage, sequence_parallel, micro_batch_size,
                    activation_checkpointing, attention, fused_norm, precision)},
            {'factor': 'tp against pp', 'place': tp::double, 'level': concat('tp ', tp, ' pp ', pp),
                'others': hash(tp * pp, cp, zero_stage, sequence_parallel, micro_batch_size,
                    activation_checkpointing, attention, fused_norm, precision)},
            {'factor': 'ZeRO', 'place': zero_stage::double, 'level': zero_stage::varchar,
                'others': hash(tp, pp, cp, sequence_parallel, micro_batch_size,
                    activation_checkpointing, attention, fused_norm, precision)},
            {'factor': 'sequence parallel', 'place': sequence_parallel::double,
                'level': if(sequence_parallel, 'on', 'off'),
                'others': hash(tp, pp, cp, zero_stage, micro_batch_size,
                    activation_checkpointing, attention, fused_norm, precision)},
            {'factor': 'micro-batch', 'place': micro_batch_size::double,
                'level': micro_batch_size::varchar,
                'others': hash(tp, pp, cp, zero_stage, sequence_parallel,
                    activation_checkpointing, attention, fused_norm, precision)},
            {'factor': 'checkpointing',
                'place': list_position(['none', 'selective', 'full'], activation_checkpointing),
                'level': activation_checkpointing,
                'others': hash(tp, pp, cp, zero_stage, sequence_parallel, micro_batch_size,
                    attention, fused_norm, precision)},
            {'factor': 'attention',
                'place': list_position(['math', 'fused_softmax', 'flash1', 'flash2', 'flash3',
                    'flash4', 'cudnn'], attention),
                'level': attention,
                'others': hash(tp, pp, cp, zero_stage, sequence_parallel, micro_batch_size,
                    activation_checkpointing, fused_norm, precision)},
            {'factor': 'fused norm', 'place': fused_norm::double,
                'level': if(fused_norm, 'on', 'off'),
                'others': hash(tp, pp, cp, zero_stage, sequence_parallel, micro_batch_size,
                    activation_checkpointing, attention, precision)},
            {'factor': 'precision',
                'place': list_position(['fp32', 'fp16', 'bf16', 'fp8'], precision),
                'level': precision,
                'others': hash(tp, pp, cp, zero_stage, sequence_parallel, micro_batch_size,
                    activation_checkpointing, attention, fused_norm)}
        ], recursive := true)
    from ran
)
select
    setting_id,
    series,
    world_size,
    stack_fingerprint,
    factor,
    lag(level) over matched as from_level,
    level as to_level,
    lag(layout_name) over matched as from_layout,
    layout_name as to_layout,
    tokens_per_s / lag(tokens_per_s) over matched as ratio
from choices
window matched as (
    partition by setting_id, series, world_size, stack_fingerprint, factor, others
    order by place
)
qualify ratio is not null
