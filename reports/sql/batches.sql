-- Grain: one row per setting, world_size, precision and micro_batch_size: its best layout.
-- Needs: contenders
-- Only sizes at which several combinations of precision and micro-batch size were tried.
-- tried, failed: how many layouts.
-- outcome: ok if a layout ran, else the first failure; without numbers then.
with best_places as (
    select
        setting_id, world_size, precision, micro_batch_size,
        count(distinct layout) as tried,
        count(distinct layout) filter (where outcome != 'ok') as failed,
        arg_min(place, if(outcome = 'ok', 0, 1e9) + place) as place
    from contenders
    where drawn and micro_batch_size is not null
    group by setting_id, world_size, precision, micro_batch_size
)
select
    best_places.*, contenders.series, contenders.outcome, contenders.layout_name,
    contenders.tokens_per_s, contenders.tokens_per_s_low, contenders.tokens_per_s_high,
    contenders.mfu
from best_places
join contenders using (setting_id, world_size, place)
qualify count(*) over (partition by best_places.setting_id, best_places.world_size) > 1
order by setting_id, world_size, precision, micro_batch_size
