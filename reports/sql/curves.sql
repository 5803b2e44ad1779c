-- Grain: one row per vertex of the line through the best layouts of a setting.
-- Needs: best
-- style: observed (measured, extended, published) or predicted. A predicted line starts at the last
-- observed vertex, which therefore stands in both.
with vertices as (
    select
        setting_id, world_size, series,
        if(series = 'predicted', 'predicted', 'observed') as style,
        tokens_per_s, tokens_per_s_per_gpu, mfu,
        model_flop_per_s_per_gpu
    from best
    where drawn
),
starts_of_predictions as (
    select * replace ('predicted' as style)
    from vertices as observed
    where style = 'observed'
        and exists (
            from vertices as later
            where later.setting_id = observed.setting_id
                and later.style = 'predicted' and later.world_size > observed.world_size
        )
    qualify row_number() over (
        partition by setting_id
        order by world_size desc, list_position(getvariable('series_order'), series)
    ) = 1
)
from vertices
union all
from starts_of_predictions
order by setting_id, style, series, world_size
