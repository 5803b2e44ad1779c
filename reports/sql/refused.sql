-- Grain: one row per combination of the study that cannot run.
-- Needs: settings
-- reason: the sentences that say why, parted by "; ".
select
    settings.setting_id,
    refused.* exclude (kept_choices)
from study.refused as refused
join settings
    on refused.model = settings.model
    and refused.cluster = settings.cluster
    and refused.study_kind = settings.study_kind
    and refused.seq_length = settings.seq_length
    and refused.kept_choices = settings.kept_choices
    and settings.kept_batch_size = case refused.study_kind
        when 'strong' then refused.global_batch_size
        else refused.global_batch_size // refused.world_size
    end
order by setting_id, world_size, tp, pp, cp, zero_stage, micro_batch_size
