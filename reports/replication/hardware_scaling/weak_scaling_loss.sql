-- Claim: Weak scaling with FSDP alone loses throughput per GPU: 37 % for a 7B from 128 to 2,048 H100.
-- Source: arXiv 2411.13055 (the number second-hand)
-- Holds: tokens/s per GPU at the largest size are at least 10 % below those at a sixteenth of it
-- (or at the smallest size).
with alone as (
    select group_id, source, world_size, max(tokens_per_s_per_gpu) as rate
    from estimates
    where zero_stage = 3 and tp * pp * cp = 1 and zero_shard_size is null
        and tokens_per_s is not null
    group by all
),
ends as (
    select group_id, source, max(world_size) as last_size
    from alone
    group by all
    having count(*) > 1
),
starts as (
    select
        group_id, source, last_size,
        coalesce(max(world_size) filter (where world_size * 16 <= last_size), min(world_size))
            as first_size
    from alone
    join ends using (group_id, source)
    group by all
)
select
    starts.source,
    format('{} on {}, {} tokens', model, cluster, seq_length) as subject,
    format('x{:.2f} per GPU from {} to {}', after.rate / before.rate, first_size, last_size)
        as observed,
    after.rate / before.rate <= 0.9 as holds
from starts
join comparison_groups using (group_id)
join alone as before on (before.group_id, before.source, before.world_size)
    = (starts.group_id, starts.source, first_size)
join alone as after on (after.group_id, after.source, after.world_size)
    = (starts.group_id, starts.source, last_size)
where study_kind = 'weak'
