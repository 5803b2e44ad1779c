-- Grain: one row per point of the study, run or not.
-- Needs: settings
select
    settings.setting_id, points.point_id, points.repeat, points.layout, points.world_size,
    columns(lambda name: name in getvariable('axes')),
    points.dp, points.global_batch_size, points.gradient_accumulation_steps,
    points.tokens_per_step, points.model_flops_per_token, points.hardware_flops_per_token,
    points.peak_flop_per_s
from study.points as points
join settings
    on points.model = settings.model
    and points.cluster = settings.cluster
    and points.study_kind = settings.study_kind
    and points.seq_length = settings.seq_length
    and points.kept_choices = settings.kept_choices
    and settings.kept_batch_size = case points.study_kind
        when 'strong' then points.global_batch_size
        else points.global_batch_size // points.world_size
    end
