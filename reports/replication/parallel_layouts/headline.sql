-- Claim: 13B on 64 GPUs is fastest without any model parallelism: micro-batch 1, FlashAttention-2, no checkpointing.
-- Source: arXiv 2311.05610 (70.5 % MFU)
-- Holds: the fastest layout has tp 1, pp 1, micro_batch_size 1 and no checkpointing.
with fastest as (
    from estimates
    where tokens_per_s is not null
    qualify row_number() over (
        partition by group_id, source, world_size order by tokens_per_s desc, layout
    ) = 1
)
select
    source,
    format('{} on {} of {}', model, world_size, cluster) as subject,
    format('{}', layout_name) || coalesce(format(', MFU {:.1f} %', mfu * 100), '') as observed,
    tp = 1 and pp = 1 and micro_batch_size = 1 and activation_checkpointing = 'none' as holds
from fastest
where model = 'llama_13b_v128k' and world_size = 64 and seq_length = 2048
