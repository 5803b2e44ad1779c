-- Claim: Micro-batch 1 usually gives the best layout: it needs the least model parallelism and no checkpointing.
-- Source: arXiv 2311.05610
-- Holds: the fastest layout at that size has micro_batch_size 1.
-- Reads: best, settings
select
    series,
    format('{} at {} tokens on {}', model, seq_length, world_size) as subject,
    format('fastest: {}', layout_name) as observed,
    micro_batch_size = 1 as holds
from best
join settings using (setting_id)
