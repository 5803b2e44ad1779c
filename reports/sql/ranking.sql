-- Grain: one row per setting, series, world_size, layout and stack that ran, fastest first.
-- Needs: layouts
-- position: 1 is the fastest.   share_of_best: ratio of tokens_per_s to the fastest.
-- within_noise: its interval overlaps that of the fastest; null where one has no interval.
with placed as (
    select
        setting_id,
        series,
        world_size,
        layout,
        layout_name,
        layout_lines,
        stack_fingerprint,
        tokens_per_s,
        tokens_per_s_low,
        tokens_per_s_high,
        row_number() over size as position,
        tokens_per_s / first_value(tokens_per_s) over size as share_of_best,
        first_value(tokens_per_s_low) over size as best_low
    from layouts
    where tokens_per_s is not null
    window size as (
        partition by setting_id, series, world_size
        order by tokens_per_s desc, layout, stack_fingerprint
    )
)
select
    * exclude (best_low),
    case when position = 1 then true else tokens_per_s_high >= best_low end as within_noise
from placed
