-- Grain: one row per setting, series and world_size at which a layout ran: its best layout.
-- Needs: best, settings
-- What a token of training takes: hours_per_token (wall clock), gpu_hours_per_token,
-- joules_per_token, usd_per_token (null without a price). _low and _high follow from the interval
-- of the rate.
-- joules_from: 'measured', or 'tdp': every GPU at the data sheet's power all the time, without the
-- rest of the node.
-- on_front: no other size of the setting is as fast and takes fewer GPU-hours, by more than the
-- noise of both (scaling/analyse/ties.py).
-- cheapest_front: the same in dollars, over all clusters with the same model and batch.
with priced as (
    select
        best.setting_id, best.series, best.world_size, best.layout_name, best.slot, best.drawn,
        settings.model, settings.cluster, settings.study_kind, settings.seq_length,
        settings.kept_batch_size, settings.kept_choices,
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
        gpu_hours_per_token * settings.usd_per_gpu_hour as usd_per_token,
        hours_per_token_low * best.world_size as gpu_hours_per_token_low,
        hours_per_token_high * best.world_size as gpu_hours_per_token_high,
        gpu_hours_per_token_low * settings.usd_per_gpu_hour as usd_per_token_low,
        gpu_hours_per_token_high * settings.usd_per_gpu_hour as usd_per_token_high,
        sqrt(
            margin ** 2 + (getvariable('z80') * coalesce(predicted_size_sigma, 0)) ** 2
        ) as margin
    from best
    join settings using (setting_id)
)
select
    priced.*,
    not exists (
        from priced as other
        where other.setting_id = priced.setting_id and other.series = priced.series
            and other.hours_per_token <= priced.hours_per_token
            and ln(priced.gpu_hours_per_token / other.gpu_hours_per_token)
                > sqrt(priced.margin ** 2 + other.margin ** 2)
    ) as on_front,
    usd_per_token is not null and not exists (
        from priced as other
        where other.model = priced.model and other.study_kind = priced.study_kind
            and other.seq_length = priced.seq_length
            and other.kept_batch_size = priced.kept_batch_size
            and other.kept_choices = priced.kept_choices and other.series = priced.series
            and other.hours_per_token <= priced.hours_per_token
            and ln(priced.usd_per_token / other.usd_per_token)
                > sqrt(priced.margin ** 2 + other.margin ** 2)
    ) as cheapest_front
from priced
order by setting_id, series, world_size
