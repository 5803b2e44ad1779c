-- Grain: one row per point that has run: its last attempt.
-- Needs: planned
-- tokens_per_s: tokens / s, the whole job; _low and _high from the 95 % interval of the step time.
-- mfu, hfu: ratios; null where no peak is published. All null unless the outcome is ok.
-- model_flop_per_s_per_gpu: FLOP/s the model got out of one GPU, recomputation excluded.
with latest as (
    select *
    from study.rows
    qualify row_number() over (
        partition by point_id order by attempt desc, started_at desc
    ) = 1
),
timed as (
    select
        planned.setting_id,
        'measured' as series,
        planned.layout_name,
        planned.layout_lines,
        latest.* replace (
            case when outcome = 'ok' then latest.step_time_s end as step_time_s,
            case when outcome = 'ok' then latest.step_time_low_s end as step_time_low_s,
            case when outcome = 'ok' then latest.step_time_high_s end as step_time_high_s
        )
    from latest
    join planned using (point_id)
)
select
    *,
    tokens_per_step / step_time_s as tokens_per_s,
    tokens_per_step / step_time_high_s as tokens_per_s_low,
    tokens_per_step / step_time_low_s as tokens_per_s_high,
    tokens_per_s / world_size as tokens_per_s_per_gpu,
    model_flops_per_token * tokens_per_s / world_size as model_flop_per_s_per_gpu,
    hardware_flops_per_token * tokens_per_s / world_size as hardware_flop_per_s_per_gpu,
    model_flop_per_s_per_gpu / peak_flop_per_s as mfu,
    hardware_flop_per_s_per_gpu / peak_flop_per_s as hfu
from timed
order by setting_id, world_size, layout, repeat, point_id
