-- Grain: one row per setting, series and world_size at which a layout ran: its best layout.
-- Needs: best, settings
-- Per token of training: hours_per_token (wall clock), gpu_hours_per_token, joules_per_token,
-- usd_per_token (null without a price). joules_from: 'measured', or 'tdp': every GPU at the data
-- sheet's power for the whole time, without the rest of the node.
-- on_front: no other size of the setting is at least as fast and takes no more GPU-hours.
-- cheapest_front: the same in dollars, over all clusters of the model and batch.
with priced as (
    select
        best.setting_id,
        best.series,
        best.world_size,
        best.layout_name,
        best.slot,
        best.drawn,
        settings.model,
        settings.cluster,
        settings.study_kind,
        settings.seq_length,
        settings.kept_batch_size,
        1 / best.tokens_per_s / 3600 as hours_per_token,
        1 / best.tokens_per_s_high / 3600 as hours_per_token_low,
        1 / best.tokens_per_s_low / 3600 as hours_per_token_high,
        hours_per_token * best.world_size as gpu_hours_per_token,
        coalesce(
            best.energy_j / best.tokens_per_step,
            gpu_hours_per_token * 3600 * settings.gpu_tdp_w
        ) as joules_per_token,
        case
            when best.energy_j is not null then 'measured'
            when settings.gpu_tdp_w is not null then 'tdp'
        end as joules_from,
        gpu_hours_per_token * settings.usd_per_gpu_hour as usd_per_token
    from best
    join settings using (setting_id)
)
select
    priced.*,
    not exists (
        from priced as other
        where other.setting_id = priced.setting_id and other.series = priced.series
            and other.hours_per_token <= priced.hours_per_token
            and other.gpu_hours_per_token <= priced.gpu_hours_per_token
            and other.world_size != priced.world_size
    ) as on_front,
    usd_per_token is not null and not exists (
        from priced as other
        where other.model = priced.model and other.study_kind = priced.study_kind
            and other.seq_length = priced.seq_length
            and other.kept_batch_size = priced.kept_batch_size and other.series = priced.series
            and other.hours_per_token <= priced.hours_per_token
            and other.usd_per_token <= priced.usd_per_token
            and (other.setting_id, other.world_size) != (priced.setting_id, priced.world_size)
    ) as cheapest_front
from priced
order by setting_id, series, world_size
