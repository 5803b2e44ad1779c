-- Grain: one row per setting, series and world_size at which the fixed layout ran.
-- Needs: ranking, best
-- The fixed layout is the one that is best at the smallest size at which anything ran. share_of_best
-- is what keeping it costs: layout effect; efficiency is its own scale effect.
with kept as (
    select setting_id, series, arg_min(layout, world_size) as layout
    from best
    group by setting_id, series
),
its_rates as (
    select ranking.*
    from ranking
    join kept using (setting_id, series, layout)
    qualify row_number() over (
        partition by setting_id, series, world_size order by position
    ) = 1
)
select
    its_rates.setting_id,
    its_rates.series,
    its_rates.world_size,
    its_rates.layout,
    its_rates.layout_name,
    its_rates.tokens_per_s,
    its_rates.tokens_per_s / its_rates.world_size as tokens_per_s_per_gpu,
    its_rates.share_of_best,
    its_rates.tokens_per_s / its_rates.world_size
        / first_value(its_rates.tokens_per_s / its_rates.world_size) over (
            partition by its_rates.setting_id, its_rates.series order by its_rates.world_size
        ) as efficiency,
    best.drawn
from its_rates
join best using (setting_id, series, world_size)
order by setting_id, series, world_size
