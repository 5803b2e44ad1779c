-- Claim: While throughput per GPU falls by 37 %, power per GPU falls by 6 %: energy per token rises by half.
-- Source: arXiv 2411.13055 (the numbers second-hand)
-- Holds: power per GPU falls by a smaller share than tokens/s per GPU do, smallest to largest size.
with alone as (
    select
        group_id, source, world_size,
        max(tokens_per_s_per_gpu) as rate,
        arg_max(mean_power_w / world_size, tokens_per_s_per_gpu) as power
    from estimates
    where zero_stage = 3 and tp * pp * cp = 1 and zero_shard_size is null
        and tokens_per_s is not null and mean_power_w is not null
    group by all
),
ends as (
    select
        group_id, source,
        min(world_size) as first_size, max(world_size) as last_size,
        arg_max(rate, world_size) / arg_min(rate, world_size) as rate_ratio,
        arg_max(power, world_size) / arg_min(power, world_size) as power_ratio
    from alone
    group by all
    having count(*) > 1
)
select
    source,
    format('{} on {}, {} tokens', model, cluster, seq_length) as subject,
    format('power x{:.2f}, throughput x{:.2f} per GPU from {} to {}', power_ratio, rate_ratio, first_size, last_size) as observed,
    power_ratio > rate_ratio as holds
from ends
join comparison_groups using (group_id)
where study_kind = 'weak'
