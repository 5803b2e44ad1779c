-- Grain: one row per setting, series and world_size at which a layout ran: the fastest of them.
-- Needs: layouts, ranking, colours
-- The runner-up is the fastest other layout. tied: the intervals of the two overlap.
-- ideal_tokens_per_s: the rate per GPU at the smallest size, times world_size.
-- speed_up, efficiency: ratios to the smallest size that ran; efficiency is speed-up per GPU added.
with runner_up as (
    select second.*
    from ranking as second
    join ranking as first using (setting_id, series, world_size)
    where first.position = 1 and second.layout != first.layout
    qualify row_number() over (
        partition by setting_id, series, world_size order by second.position
    ) = 1
)
select
    layouts.*,
    colours.slot,
    runner_up.layout as runner_up_layout,
    runner_up.layout_name as runner_up_layout_name,
    runner_up.stack_fingerprint as runner_up_stack_fingerprint,
    runner_up.tokens_per_s as runner_up_tokens_per_s,
    runner_up.tokens_per_s_low as runner_up_tokens_per_s_low,
    runner_up.tokens_per_s_high as runner_up_tokens_per_s_high,
    runner_up.within_noise as tied,
    first_value(layouts.tokens_per_s_per_gpu) over sizes * world_size as ideal_tokens_per_s,
    layouts.tokens_per_s / first_value(layouts.tokens_per_s) over sizes as speed_up,
    layouts.tokens_per_s / ideal_tokens_per_s as efficiency
from layouts
join ranking using (setting_id, series, world_size, layout, stack_fingerprint)
join colours using (setting_id, layout)
left join runner_up using (setting_id, series, world_size)
where ranking.position = 1
window sizes as (partition by setting_id, series order by world_size)
order by setting_id, series, world_size
