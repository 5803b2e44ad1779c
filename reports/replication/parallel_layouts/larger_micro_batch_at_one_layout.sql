-- Claim: At a fixed layout a larger micro-batch that fits is faster.
-- Source: arXiv 2311.05610
-- Holds: the mean throughput ratio of neighbouring micro-batches, all else equal, is above 1.
select
    source,
    format('{} at {} tokens', model, seq_length) as subject,
    string_agg(format('{} against {}: x{:.2f} ({} pairs)', to_level, from_level, mean_ratio, pairs), '; ' order by from_level::integer) as observed,
    sum(ln(mean_ratio) * pairs) > 0 as holds
from effects
where factor = 'micro-batch'
group by source, model, seq_length
