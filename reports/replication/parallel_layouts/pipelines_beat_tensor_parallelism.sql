-- Claim: At equal degree pipeline parallelism is cheaper than tensor parallelism.
-- Source: arXiv 2311.05610
-- Holds: in the median over pairs of layouts with tp x pp equal, the one with more pp is faster.
with traded as (
    select
        group_id, source, ratio,
        regexp_extract(from_level, 'tp (\d+)', 1)::integer as from_tp,
        regexp_extract(to_level, 'tp (\d+)', 1)::integer as to_tp
    from pairs
    where factor = 'tp against pp'
),
towards_pipelines as (
    select group_id, source, case when to_tp < from_tp then ratio else 1 / ratio end as ratio
    from traded
)
select
    source,
    format('{} at {} tokens', model, seq_length) as subject,
    format('x{:.2f} in the median of {} pairs', median(ratio), count(*)) as observed,
    median(ratio) > 1 as holds
from towards_pipelines
join comparison_groups using (group_id)
group by source, model, seq_length
