-- Claim: A layout that does not fit on 64 GPUs may fit on 256: ZeRO-1 shards the optimizer over more ranks.
-- Source: arXiv 2311.05610
-- Holds: some layout runs out of memory at one size and runs at a larger one.
with fits as (
    select
        group_id, source, layout,
        min(world_size) filter (where outcome = 'ok') as runs_from,
        max(world_size) filter (where outcome = 'oom') as fails_until
    from estimates
    group by all
    having count(*) > 1
)
select
    source,
    format('{} at {} tokens', model, seq_length) as subject,
    format('{} of {} layouts fit only on more GPUs', count(*) filter (where fails_until < runs_from), count(*)) as observed,
    bool_or(fails_until < runs_from) is true as holds
from fits
join comparison_groups using (group_id)
group by source, model, seq_length
