-- Grain: one row per point of the study, run or not.
-- Needs: settings
select
    settings.setting_id, points.point_id, points.repeat, points.layout, points.world_size,
    points.tp, points.pp, points.cp, points.dp, points.zero_stage, points.zero_shard_size,
    points.optimizer_offload, points.pipeline_schedule, points.sequence_parallel,
    points.micro_batch_size, points.global_batch_size, points.gradient_accumulation_steps,
    points.activation_checkpointing, points.attention, points.fused_norm, points.fused_rope,
    points.fused_mlp, points.fused_cross_entropy, points.compile, points.precision,
    points.tokens_per_step, points.model_flops_per_token, points.hardware_flops_per_token,
    points.peak_flop_per_s
from study.points as points
join settings
    on points.model = settings.model
    and points.cluster = settings.cluster
    and points.study_kind = settings.study_kind
    and points.seq_length = settings.seq_length
    and settings.kept_batch_size = case points.study_kind
        when 'strong' then points.global_batch_size
        else points.global_batch_size // points.world_size
    end
