-- Grain: one row per combination of the study that cannot run, or that a guided sweep skipped.
-- skipped: it could run.
-- reason: the sentences that say why, separated by "; ".
select group_id, refused.* exclude (kept_batch_size, kept_choices)
from study.refused as refused
join comparison_groups
    using (model, cluster, study_kind, seq_length, kept_batch_size, kept_choices)
order by group_id, world_size, tp, pp, cp, zero_stage, micro_batch_size
