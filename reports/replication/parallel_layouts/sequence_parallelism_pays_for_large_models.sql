-- Claim: Sequence parallelism pays for large models or long sequences, and the more the larger tp is.
-- Source: arXiv 2311.05610
-- Holds: the mean gain at the largest tp is above 1 and at least that at the smallest.
with gains as (
    select group_id, source, tp, exp(avg(ln(ratio))) as gain, count(*) as number
    from pairs
    join estimates as layouts using (group_id, source, world_size, stack_fingerprint)
    where layouts.layout = to_layout and factor = 'sequence parallel' and to_level = 'on'
    group by all
)
select
    source,
    format('{} at {} tokens', model, seq_length) as subject,
    string_agg(format('tp {}: x{:.3f} ({} pairs)', tp, gain, number), '; ' order by tp) as observed,
    arg_max(gain, tp) > 1 and arg_max(gain, tp) >= arg_min(gain, tp) as holds
from gains
join comparison_groups using (group_id)
group by group_id, source, model, seq_length
