-- Claim: Beyond some scale a total tp x pp of 2 to 4 is faster than FSDP alone, which leads at small scale.
-- Source: arXiv 2411.13055
-- Holds: FSDP alone is faster at the smallest size at which both ran, and slower at the largest.
with rates as (
    select
        group_id, source, world_size,
        max(tokens_per_s) filter (where tp * pp = 1 and zero_stage = 3) as alone,
        max(tokens_per_s) filter (where tp * pp between 2 and 4) as parallel,
        arg_max(layout_name, tokens_per_s) filter (where tp * pp between 2 and 4) as parallel_name
    from estimates
    where cp = 1 and zero_shard_size is null and tokens_per_s is not null
    group by all
    having alone is not null and parallel is not null
),
ends as (
    select
        group_id, source,
        min(world_size) as first_size,
        max(world_size) as last_size,
        arg_min(parallel / alone, world_size) as at_first,
        arg_max(parallel / alone, world_size) as at_last,
        min(world_size) filter (where parallel > alone) as overtaken_at
    from rates
    group by all
    having count(*) > 1
)
select
    source,
    format('{} on {}, {} tokens', model, cluster, seq_length) as subject,
    format('tp x pp of 2 to 4 gives x{:.2f} of FSDP alone at {}, x{:.2f} at {}', at_first, first_size, at_last, last_size)
        || coalesce(format('; ahead from {}', overtaken_at), '; never ahead') as observed,
    at_first < 1 and at_last > 1 as holds
from ends
join comparison_groups using (group_id)
