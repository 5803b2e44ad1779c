-- Claim: H100 is less utilised than A100 at the same point (41 % against 60 % MFU): links grew less than compute.
-- Source: arXiv 2411.13055 (the numbers second-hand)
-- Holds: the median ratio of the two MFUs over all layouts that ran on both is below 1.
with used as (
    select source, model, study_kind, seq_length, kept_batch_size, world_size, layout, gpu, mfu
    from estimates
    where mfu is not null
)
select
    older.source,
    older.model as subject,
    format(
        'MFU x{:.2f} in the median of {} layouts (x{:.2f} to x{:.2f})',
        median(newer.mfu / older.mfu), count(*), min(newer.mfu / older.mfu), max(newer.mfu / older.mfu)
    ) as observed,
    median(newer.mfu / older.mfu) < 1 as holds
from used as older
join used as newer using (source, model, study_kind, seq_length, kept_batch_size, world_size, layout)
where older.gpu = 'a100-80gb' and newer.gpu = 'h100-80gb'
group by older.source, older.model
