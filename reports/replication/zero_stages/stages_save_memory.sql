-- Claim: Each ZeRO stage takes less memory per GPU than the one before.
-- Source: arXiv 2310.05350
-- Holds: the median ratio of memory (measured peak, or predicted) of a stage to the one before, all else
-- equal and on more than one rank, is at most 1 for every stage, and that of stage 3 to stage 0 below 1.
with used as (
    select
        group_id, source, world_size, zero_stage,
        concat_ws(' ', tp, pp, cp, micro_batch_size, activation_checkpointing, precision, optimizer_offload) as rest,
        coalesce(peak_memory_bytes, predicted_memory_bytes) as bytes
    from estimates
    where zero_shard_size is null and dp > 1
),
steps as (
    select group_id, source, zero_stage, median(ratio) as ratio
    from (
        select *, bytes / lag(bytes) over stages as ratio, bytes / first_value(bytes) over stages as total
        from used
        where bytes is not null
        window stages as (partition by group_id, source, world_size, rest order by zero_stage)
    )
    where ratio is not null
    group by all
)
select
    source,
    format('{} on {}', model, cluster) as subject,
    string_agg(format('stage {}: x{:.2f}', zero_stage, ratio), '; ' order by zero_stage) as observed,
    bool_and(ratio <= 1) and product(ratio) < 1 as holds
from steps
join comparison_groups using (group_id)
group by group_id, source, model, cluster
