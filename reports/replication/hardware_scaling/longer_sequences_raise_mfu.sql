-- Claim: Longer sequences raise MFU at the same number of tokens per GPU.
-- Source: arXiv 2411.13055
-- Holds: FSDP alone at the longest context reaches at least the MFU (FLOP/s per rank where no peak is
-- published) of the shortest, in the median over sizes.
with alone as (
    select
        source, model, cluster, study_kind, world_size, seq_length,
        kept_batch_size * seq_length as kept_tokens,
        max(model_flop_per_s_per_gpu) as rate
    from estimates
    where zero_stage = 3 and tp * pp * cp = 1 and zero_shard_size is null
        and tokens_per_s is not null
    group by all
),
ends as (
    select
        source, model, cluster, study_kind, kept_tokens, world_size,
        min(seq_length) as shortest, max(seq_length) as longest,
        arg_max(rate, seq_length) / arg_min(rate, seq_length) as ratio
    from alone
    group by all
    having count(distinct seq_length) > 1
)
select
    source,
    format('{} on {}', model, cluster) as subject,
    format('x{:.2f} of the FLOP/s with {} tokens instead of {}, median of {} sizes',
        median(ratio), any_value(longest), any_value(shortest), count(*)) as observed,
    median(ratio) >= 1 as holds
from ends
group by source, model, cluster, study_kind
