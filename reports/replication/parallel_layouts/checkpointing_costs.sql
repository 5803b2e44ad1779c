-- Claim: Checkpointing every layer costs throughput: x0.64 to x0.91 at the same layout.
-- Source: arXiv 2311.05610
-- Holds: the mean throughput ratio of full checkpointing against none, all else equal, is below 1.
select
    source,
    format('{} at {} tokens', model, seq_length) as subject,
    format('x{:.2f} in the mean of {} pairs (x{:.2f} to x{:.2f})', mean_ratio, pairs, lowest, highest) as observed,
    mean_ratio < 1 as holds
from effects
where factor = 'checkpointing' and from_level = 'none' and to_level = 'full'
