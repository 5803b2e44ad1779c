-- Grain: one row per setting, series, world_size, layout and stack that ran, fastest first.
-- Needs: layouts, noise
-- position: 1 is the fastest.   share_of_best: tokens_per_s over that of the fastest.
-- margin: half the interval of ln(tokens_per_s) by which rates of one size are told apart
-- (scaling/analyse/ties.py): of the 95 % interval (extended: 80 %), at least a floor and 1.96
-- standard errors by the spread of repeats; for a prediction that of its own error.
-- within_noise: not told apart from the fastest.
with rates as (
    select
        layouts.setting_id, layouts.series, world_size, layout, layout_name, layout_lines,
        stack_fingerprint, tokens_per_s, tokens_per_s_low, tokens_per_s_high,
        predicted_size_sigma,
        case when layouts.series = 'predicted' then greatest(
            ln(1 + if(
                predicted_own_sigma is null, getvariable('predicted_floor'), getvariable('noise_floor')
            )) / sqrt(2),
            getvariable('z80') * coalesce(predicted_own_sigma, 0)
        ) else greatest(
            ln(1 + if(
                tokens_per_s_high > tokens_per_s_low or ok_runs > 1,
                getvariable('noise_floor'), getvariable('unstated_floor')
            )) / sqrt(2),
            getvariable('z95') * coalesce(repeat_sigma, 0) / sqrt(ok_runs),
            coalesce(ln(tokens_per_s_high / tokens_per_s_low) / 2, 0)
        ) end as margin
    from layouts
    left join noise using (setting_id, series)
    where tokens_per_s is not null
),
ranked as (
    select
        *,
        row_number() over size as position,
        tokens_per_s / first_value(tokens_per_s) over size as share_of_best,
        first_value(margin) over size as best_margin
    from rates
    window size as (
        partition by setting_id, series, world_size
        order by tokens_per_s desc, layout, stack_fingerprint
    )
)
select
    * exclude (best_margin),
    position = 1 or -ln(share_of_best) <= sqrt(margin ** 2 + best_margin ** 2) as within_noise
from ranked
order by setting_id, series, world_size, position
