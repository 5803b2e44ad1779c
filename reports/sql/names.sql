-- Grain: one row per setting and layout of the study.
-- Needs: settings
-- layout_name: for people, the choices that differ between the points of the setting.
-- layout_lines: the same for a chart, shorter, lines parted by |.
with placed as (
    select distinct
        settings.setting_id, points.layout, points.tp, points.pp, points.cp, points.zero_stage,
        points.zero_shard_size, points.optimizer_offload, points.pipeline_schedule,
        points.sequence_parallel, points.micro_batch_size, points.activation_checkpointing,
        points.attention, points.fused_norm, points.fused_rope, points.fused_mlp,
        points.fused_cross_entropy, points.compile, points.precision
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
),
differs as (
    select
        setting_id,
        min(tp) != max(tp) as tp,
        min(pp) != max(pp) as pp,
        min(cp) != max(cp) as cp,
        min(zero_stage) != max(zero_stage) as zero_stage,
        -- null: all dp ranks
        min(coalesce(zero_shard_size, 0)) != max(coalesce(zero_shard_size, 0)) as zero_shard_size,
        min(optimizer_offload) != max(optimizer_offload) as optimizer_offload,
        min(pipeline_schedule) != max(pipeline_schedule) as pipeline_schedule,
        min(sequence_parallel) != max(sequence_parallel) as sequence_parallel,
        min(micro_batch_size) != max(micro_batch_size) as micro_batch_size,
        min(activation_checkpointing) != max(activation_checkpointing) as activation_checkpointing,
        min(attention) != max(attention) as attention,
        min(fused_norm) != max(fused_norm) as fused_norm,
        min(fused_rope) != max(fused_rope) as fused_rope,
        min(fused_mlp) != max(fused_mlp) as fused_mlp,
        min(fused_cross_entropy) != max(fused_cross_entropy) as fused_cross_entropy,
        min(compile) != max(compile) as compile,
        min(precision) != max(precision) as precision
    from placed
    group by setting_id
),
named as (
    select
        placed.setting_id,
        placed.layout,
        concat_ws(
            ', ',
            case when differs.tp then 'tp ' || placed.tp end,
            case when differs.pp then 'pp ' || placed.pp end,
            case when differs.cp then 'cp ' || placed.cp end,
            case when differs.pipeline_schedule then placed.pipeline_schedule end,
            case when differs.zero_stage then 'ZeRO ' || placed.zero_stage end,
            case when differs.zero_shard_size then 'shard ' || placed.zero_shard_size end,
            case when differs.optimizer_offload and placed.optimizer_offload != 'none'
                then 'optimizer on ' || placed.optimizer_offload end,
            case when differs.sequence_parallel and placed.sequence_parallel
                then 'sequence parallel' end,
            case when differs.micro_batch_size then 'micro-batch ' || placed.micro_batch_size end,
            case when differs.activation_checkpointing
                    and placed.activation_checkpointing != 'none'
                then placed.activation_checkpointing || ' checkpointing' end,
            case when differs.attention then placed.attention end,
            case when differs.fused_norm and placed.fused_norm then 'fused norm' end,
            case when differs.fused_rope and placed.fused_rope then 'fused rope' end,
            case when differs.fused_mlp and placed.fused_mlp then 'fused mlp' end,
            case when differs.fused_cross_entropy and placed.fused_cross_entropy
                then 'fused cross-entropy' end,
            case when differs.compile and placed.compile then 'compiled' end,
            case when differs.precision then placed.precision end
        ) as words,
        concat_ws(
            ' ',
            case when differs.tp then 'tp ' || placed.tp end,
            case when differs.pp then 'pp ' || placed.pp end,
            case when differs.cp then 'cp ' || placed.cp end
        ) as degrees,
        concat_ws(
            ' ',
            case when differs.pipeline_schedule then placed.pipeline_schedule end,
            case when differs.zero_stage then 'Z' || placed.zero_stage end,
            case when differs.zero_shard_size then 'sh ' || placed.zero_shard_size end,
            case when differs.optimizer_offload and placed.optimizer_offload != 'none'
                then 'offload' end,
            case when differs.sequence_parallel and placed.sequence_parallel then 'sp' end,
            case when differs.micro_batch_size then 'mb ' || placed.micro_batch_size end,
            case when differs.activation_checkpointing
                    and placed.activation_checkpointing != 'none'
                then 'ckpt' end,
            case when differs.attention then placed.attention end,
            case when differs.fused_norm and placed.fused_norm then 'fn' end,
            case when differs.fused_rope and placed.fused_rope then 'fr' end,
            case when differs.fused_mlp and placed.fused_mlp then 'fm' end,
            case when differs.fused_cross_entropy and placed.fused_cross_entropy then 'fce' end,
            case when differs.compile and placed.compile then 'comp' end,
            case when differs.precision then placed.precision end
        ) as choices
    from placed
    join differs using (setting_id)
)
select
    setting_id,
    layout,
    coalesce(nullif(words, ''), layout) as layout_name,
    coalesce(nullif(concat_ws('|', nullif(degrees, ''), nullif(choices, '')), ''), layout)
        as layout_lines
from named
order by setting_id, layout
