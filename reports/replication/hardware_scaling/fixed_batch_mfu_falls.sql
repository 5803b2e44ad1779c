-- Claim: At a fixed global batch MFU falls as GPUs are added: from about 40 % on 2 nodes to under 15 % on 32.
-- Source: arXiv 2411.13055 (the numbers second-hand)
-- Holds: MFU of FSDP alone (achieved FLOP/s per GPU where no peak is published) at the largest size is
-- at least 10 % below that at the smallest.
with alone as (
    select group_id, source, world_size, max(mfu) as mfu, max(model_flop_per_s_per_gpu) as rate
    from estimates
    where zero_stage = 3 and tp * pp * cp = 1 and zero_shard_size is null
        and tokens_per_s is not null
    group by all
),
ends as (
    select
        group_id, source,
        min(world_size) as first_size, max(world_size) as last_size,
        arg_min(mfu, world_size) as first_mfu, arg_max(mfu, world_size) as last_mfu,
        arg_max(rate, world_size) / arg_min(rate, world_size) as ratio
    from alone
    group by all
    having count(*) > 1
)
select
    source,
    format('{} on {}, {} tokens', model, cluster, seq_length) as subject,
    coalesce(
        format('MFU {:.0f} % at {}, {:.0f} % at {}', first_mfu * 100, first_size, last_mfu * 100, last_size),
        format('x{:.2f} of the FLOP/s per rank from {} to {}', ratio, first_size, last_size)
    ) as observed,
    ratio <= 0.9 as holds
from ends
join comparison_groups using (group_id)
where study_kind = 'strong'
