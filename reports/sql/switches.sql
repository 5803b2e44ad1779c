-- Grain: one row per setting, series and neighbouring sizes whose fastest layouts differ.
-- Needs: best, crossovers
-- crossing_low, crossing_high: the two sizes where nothing nearer is known.
-- verdict: 'resolved' (crossing with its interval), 'tie' (the intervals of the two overlap at one of the
-- sizes: not resolved by the data), 'unknown' (an interval is missing), 'absent' (one of the two
-- did not run at the other's size, so that where they would cross is not known).
with steps as (
    select
        setting_id, series, drawn,
        layout as after_layout,
        layout_name as after_name,
        slot as after_slot,
        world_size as to_world_size,
        lag(layout) over sizes as before_layout,
        lag(layout_name) over sizes as before_name,
        lag(slot) over sizes as before_slot,
        lag(world_size) over sizes as from_world_size
    from best
    window sizes as (partition by setting_id, series order by world_size)
    qualify before_layout != after_layout
)
select
    steps.*,
    crossing,
    coalesce(crossing_low, from_world_size) as crossing_low,
    coalesce(crossing_high, to_world_size) as crossing_high,
    case
        when crossing is null then 'absent'
        when resolved is null then 'unknown'
        when resolved then 'resolved'
        else 'tie'
    end as verdict
from steps
left join crossovers using (
    setting_id, series, before_layout, after_layout, from_world_size, to_world_size
)
order by setting_id, series, from_world_size
