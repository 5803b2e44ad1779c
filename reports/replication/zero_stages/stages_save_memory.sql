-- Claim: Each ZeRO stage takes less memory per GPU than the one before.
-- Source: arXiv 2310.05350
-- Holds: the median ratio of memory (measured peak, or predicted) of a stage to the one before, all else
-- equal and on more than one rank, is at most 1 for every stage, and that of stage 3 to stage 0 below 1.
-- Reads: estimates, settings
with used as (
    select
        setting_id, series, world_size, zero_stage,
        concat_ws(' ', tp, pp, cp, micro_batch_size, activation_checkpointing, precision, optimizer_offload) as rest,
        coalesce(peak_memory_bytes, predicted_memory_bytes) as bytes
    from estimates
    where zero_shard_size is null and dp > 1
),
steps as (
    select setting_id, series, zero_stage, median(ratio) as ratio
    from (
        select *, bytes / lag(bytes) over stages as ratio, bytes / first_value(bytes) over stages as total
        from used
        where bytes is not null
        window stages as (partition by setting_id, series, world_size, rest order by zero_stage)
    )
    where ratio is not null
    group by all
)
select
    series,
    format('{} on {}', model, cluster) as subject,
    string_agg(format('stage {}: x{:.2f}', zero_stage, ratio), '; ' order by zero_stage) as observed,
    bool_and(ratio <= 1) and product(ratio) < 1 as holds
from steps
join settings using (setting_id)
group by setting_id, series, model, cluster
