-- Claim: Raising tp or pp beats checkpointing as a way to fit.
-- Source: arXiv 2311.05610
-- Holds: the fastest layout without checkpointing is faster than the fastest with it, at that size.
with fastest as (
    select
        group_id, source, world_size,
        max(tokens_per_s) filter (where activation_checkpointing = 'none') as without,
        max(tokens_per_s) filter (where activation_checkpointing = 'full') as checkpointed
    from estimates
    group by all
    having without is not null and checkpointed is not null
)
select
    source,
    format('{} at {} tokens on {}', model, seq_length, world_size) as subject,
    format('x{:.2f} without checkpointing', without / checkpointed) as observed,
    without > checkpointed as holds
from fastest
join comparison_groups using (group_id)
