-- Grain: one row per setting, series, world_size, stack and two layouts that differ in one factor.
-- Needs: layouts
-- ratio: tokens_per_s with to_level over tokens_per_s with from_level, all else equal (the batch
-- too: dp and accumulation follow). Levels are neighbours among those that ran beside each other.
-- Factor 'tp against pp' keeps tp * pp and trades one for the other.
with keyed as (
    select
        *,
        -- of every axis, so that taking one out again leaves the key of all others; hashed twice,
        -- because hash(name, value) alone is linear and differences of two axes would cancel
        xor(xor(xor(xor(xor(xor(xor(xor(xor(hash(hash('tp', tp)),
            hash(hash('pp', pp))),
            hash(hash('cp', cp))),
            hash(hash('zero_stage', zero_stage))),
            hash(hash('sequence_parallel', sequence_parallel))),
            hash(hash('micro_batch_size', micro_batch_size))),
            hash(hash('activation_checkpointing', activation_checkpointing))),
            hash(hash('attention', attention))),
            hash(hash('fused_norm', fused_norm))),
            hash(hash('precision', precision))) as all_axes
    from layouts
    where tokens_per_s is not null
),
varied as (
    select
        setting_id,
        min(tp) != max(tp) as tp,
        min(pp) != max(pp) as pp,
        min(cp) != max(cp) as cp,
        min(zero_stage) != max(zero_stage) as zero_stage,
        min(sequence_parallel) != max(sequence_parallel) as sequence_parallel,
        min(micro_batch_size) != max(micro_batch_size) as micro_batch_size,
        min(activation_checkpointing) != max(activation_checkpointing) as activation_checkpointing,
        min(attention) != max(attention) as attention,
        min(fused_norm) != max(fused_norm) as fused_norm,
        min(precision) != max(precision) as precision
    from keyed
    group by setting_id
),
choices as (
    select
        setting_id, series, world_size, stack_fingerprint, layout, tokens_per_s,
        'tp' as factor, tp::double as place, tp::varchar as level,
        xor(all_axes, hash(hash('tp', tp))) as others
    from keyed
    where tp is not null and setting_id in (select setting_id from varied where tp)
    union all
    select
        setting_id, series, world_size, stack_fingerprint, layout, tokens_per_s,
        'pp' as factor, pp::double as place, pp::varchar as level,
        xor(all_axes, hash(hash('pp', pp))) as others
    from keyed
    where pp is not null and setting_id in (select setting_id from varied where pp)
    union all
    select
        setting_id, series, world_size, stack_fingerprint, layout, tokens_per_s,
        'cp' as factor, cp::double as place, cp::varchar as level,
        xor(all_axes, hash(hash('cp', cp))) as others
    from keyed
    where cp is not null and setting_id in (select setting_id from varied where cp)
    union all
    select
        setting_id, series, world_size, stack_fingerprint, layout, tokens_per_s,
        'ZeRO' as factor, zero_stage::double as place, zero_stage::varchar as level,
        xor(all_axes, hash(hash('zero_stage', zero_stage))) as others
    from keyed
    where zero_stage is not null and setting_id in (select setting_id from varied where zero_stage)
    union all
    select
        setting_id, series, world_size, stack_fingerprint, layout, tokens_per_s,
        'sequence parallel' as factor, sequence_parallel::double as place, if(sequence_parallel, 'on', 'off') as level,
        xor(all_axes, hash(hash('sequence_parallel', sequence_parallel))) as others
    from keyed
    where sequence_parallel is not null and setting_id in (select setting_id from varied where sequence_parallel)
    union all
    select
        setting_id, series, world_size, stack_fingerprint, layout, tokens_per_s,
        'micro-batch' as factor, micro_batch_size::double as place, micro_batch_size::varchar as level,
        xor(all_axes, hash(hash('micro_batch_size', micro_batch_size))) as others
    from keyed
    where micro_batch_size is not null and setting_id in (select setting_id from varied where micro_batch_size)
    union all
    select
        setting_id, series, world_size, stack_fingerprint, layout, tokens_per_s,
        'checkpointing' as factor, list_position(['none', 'selective', 'full'], activation_checkpointing) as place, activation_checkpointing as level,
        xor(all_axes, hash(hash('activation_checkpointing', activation_checkpointing))) as others
    from keyed
    where activation_checkpointing is not null and setting_id in (select setting_id from varied where activation_checkpointing)
    union all
    select
        setting_id, series, world_size, stack_fingerprint, layout, tokens_per_s,
        'attention' as factor, list_position(['math', 'fused_softmax', 'flash1', 'flash2', 'flash3',
            'flash4', 'cudnn'], attention) as place, attention as level,
        xor(all_axes, hash(hash('attention', attention))) as others
    from keyed
    where attention is not null and setting_id in (select setting_id from varied where attention)
    union all
    select
        setting_id, series, world_size, stack_fingerprint, layout, tokens_per_s,
        'fused norm' as factor, fused_norm::double as place, if(fused_norm, 'on', 'off') as level,
        xor(all_axes, hash(hash('fused_norm', fused_norm))) as others
    from keyed
    where fused_norm is not null and setting_id in (select setting_id from varied where fused_norm)
    union all
    select
        setting_id, series, world_size, stack_fingerprint, layout, tokens_per_s,
        'precision' as factor, list_position(['fp32', 'fp16', 'bf16', 'fp8'], precision) as place, precision as level,
        xor(all_axes, hash(hash('precision', precision))) as others
    from keyed
    where precision is not null and setting_id in (select setting_id from varied where precision)
    union all
    select
        setting_id, series, world_size, stack_fingerprint, layout, tokens_per_s,
        'tp against pp' as factor, tp::double as place, concat('tp ', tp, ' pp ', pp) as level,
        xor(xor(xor(all_axes, hash(hash('tp', tp))), hash(hash('pp', pp))), hash(hash('tp x pp', tp * pp))) as others
    from keyed
    where tp is not null and pp is not null
        and setting_id in (select setting_id from varied where tp and pp)
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
