-- Claim: Raising tp or pp beats checkpointing as a way to fit.
-- Source: arXiv 2311.05610
-- Holds: the fastest layout without checkpointing is faster than the fastest with it, at that size.
-- Reads: estimates, settings
with fastest as (
    select
        setting_id, series, world_size,
        max(tokens_per_s) filter (where activation_checkpointing = 'none') as without,
        max(tokens_per_s) filter (where activation_checkpointing = 'full') as checkpointed
    from estimates
    group by all
    having without is not null and checkpointed is not null
)
select
    series,
    format('{} at {} tokens on {}', model, seq_length, world_size) as subject,
    format('x{:.2f} without checkpointing', without / checkpointed) as observed,
    without > checkpointed as holds
from fastest
join settings using (setting_id)
