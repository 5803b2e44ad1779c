-- Claim: Micro-batch 1 usually gives the best layout: it needs the least model parallelism and no checkpointing.
-- Source: arXiv 2311.05610
-- Holds: the fastest layout at that size has micro_batch_size 1.
with fastest as (
    from estimates
    where tokens_per_s is not null
    qualify row_number() over (
        partition by group_id, source, world_size order by tokens_per_s desc, layout
    ) = 1
)
select
    source,
    format('{} at {} tokens on {}', model, seq_length, world_size) as subject,
    format('fastest: {}', layout_name) as observed,
    micro_batch_size = 1 as holds
from fastest
