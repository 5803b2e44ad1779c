-- Claim: The fused RMSNorm kernel is worth x1.03 to x1.30.
-- Source: arXiv 2311.05610
-- Holds: the mean throughput ratio with it against without, all else equal, is above 1.
select
    source,
    format('{} at {} tokens', model, seq_length) as subject,
    format('x{:.2f} in the mean of {} pairs', mean_ratio, pairs) as observed,
    mean_ratio > 1 as holds
from effects
where factor = 'fused norm' and to_level = 'on'
