-- Grain: one row per point of the study, run or not.
-- Needs: settings
-- layout_name: for people, the choices that differ between the points of the setting.
-- layout_lines: the same for a chart, shorter, lines parted by |.
with placed as (
    select
        settings.setting_id, points.point_id, points.repeat, points.layout, points.world_size,
        points.tp, points.pp, points.cp, points.dp, points.zero_stage, points.sequence_parallel,
        points.micro_batch_size, points.global_batch_size, points.gradient_accumulation_steps,
        points.activation_checkpointing, points.attention, points.fused_norm, points.precision,
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
),
differs as (
    select
        setting_id,
        count(distinct tp) > 1 as tp,
        count(distinct pp) > 1 as pp,
        count(distinct cp) > 1 as cp,
        count(distinct zero_stage) > 1 as zero_stage,
        count(distinct sequence_parallel) > 1 as sequence_parallel,
        count(distinct micro_batch_size) > 1 as micro_batch_size,
        count(distinct activation_checkpointing) > 1 as activation_checkpointing,
        count(distinct attention) > 1 as attention,
        count(distinct fused_norm) > 1 as fused_norm,
        count(distinct precision) > 1 as precision
    from placed
    group by setting_id
),
named as (
    select
        placed.*,
        concat_ws(
            ', ',
            case when differs.tp then 'tp ' || placed.tp end,
            case when differs.pp then 'pp ' || placed.pp end,
            case when differs.cp then 'cp ' || placed.cp end,
            case when differs.zero_stage then 'ZeRO ' || placed.zero_stage end,
            case when differs.sequence_parallel and placed.sequence_parallel
                then 'sequence parallel' end,
            case when differs.micro_batch_size then 'micro-batch ' || placed.micro_batch_size end,
            case when differs.activation_checkpointing
                    and placed.activation_checkpointing != 'none'
                then placed.activation_checkpointing || ' checkpointing' end,
            case when differs.attention then placed.attention end,
            case when differs.fused_norm and placed.fused_norm then 'fused norm' end,
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
            case when differs.zero_stage then 'Z' || placed.zero_stage end,
            case when differs.sequence_parallel and placed.sequence_parallel then 'sp' end,
            case when differs.micro_batch_size then 'mb ' || placed.micro_batch_size end,
            case when differs.activation_checkpointing
                    and placed.activation_checkpointing != 'none'
                then 'ckpt' end,
            case when differs.attention then placed.attention end,
            case when differs.fused_norm and placed.fused_norm then 'fn' end,
            case when differs.precision then placed.precision end
        ) as choices
    from placed
    join differs using (setting_id)
)
select
    * exclude (words, degrees, choices),
    coalesce(nullif(words, ''), layout) as layout_name,
    coalesce(nullif(concat_ws('|', nullif(degrees, ''), nullif(choices, '')), ''), layout)
        as layout_lines
from named
