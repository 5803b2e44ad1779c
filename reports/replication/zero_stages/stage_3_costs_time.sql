-- Claim: ZeRO-3 takes more time per step than ZeRO-2.
-- Source: arXiv 2310.05350
-- Holds: the mean throughput ratio of stage 3 against stage 2, all else equal, is below 1.
select
    source,
    format('{} on {}', model, cluster) as subject,
    format('x{:.2f} of the throughput in the mean of {} pairs (x{:.2f} to x{:.2f})', mean_ratio, pairs, lowest, highest) as observed,
    mean_ratio < 1 as holds
from effects
where factor = 'ZeRO' and from_level = '2' and to_level = '3'
