-- Grain: one row per setting, series and neighbouring sizes whose advised layouts differ.
-- Needs: advised, rivals, colours, crossovers, best
-- The changes of the advice, and no others: where the fastest changes within the noise, nothing does.
-- gain: tokens_per_s of the layout after over the one before, at to_world_size, with its interval; null
-- where the one before did not run there. crossing: world_size at which the two lines meet, where they
-- meet between these sizes; crossing_low, crossing_high: the two sizes where nothing nearer is known.
-- verdict: 'resolved' (crossing with its interval), 'tie' (the two are not told apart at to_world_size:
-- later sizes are what the change is for), 'absent' (the one before did not run there), else 'unknown'.
with steps as (
    select
        setting_id, series,
        layout as after_layout,
        world_size as to_world_size,
        lag(layout) over sizes as before_layout,
        lag(world_size) over sizes as from_world_size
    from advised
    window sizes as (partition by setting_id, series order by world_size)
    qualify before_layout != after_layout
)
select
    steps.setting_id, steps.series, best.drawn, steps.from_world_size, steps.to_world_size,
    steps.before_layout, before_colour.layout_name as before_name, before_colour.slot as before_slot,
    steps.after_layout, after_colour.layout_name as after_name, after_colour.slot as after_slot,
    after_rate.tokens_per_s / before_rate.tokens_per_s as gain,
    sqrt(after_rate.margin ** 2 + before_rate.margin ** 2) as gain_margin,
    gain / exp(gain_margin) as gain_low,
    gain * exp(gain_margin) as gain_high,
    meeting.crossing,
    coalesce(meeting.crossing_low, steps.from_world_size) as crossing_low,
    coalesce(meeting.crossing_high, steps.to_world_size) as crossing_high,
    case
        when gain is null then 'absent'
        when meeting.crossing is not null and meeting.resolved then 'resolved'
        when abs(ln(gain)) <= gain_margin then 'tie'
        else 'unknown'
    end as verdict
from steps
join best on best.setting_id = steps.setting_id and best.series = steps.series
    and best.world_size = steps.to_world_size
join colours as before_colour
    on before_colour.setting_id = steps.setting_id and before_colour.layout = steps.before_layout
join colours as after_colour
    on after_colour.setting_id = steps.setting_id and after_colour.layout = steps.after_layout
join rivals as after_rate
    on after_rate.setting_id = steps.setting_id and after_rate.series = steps.series
        and after_rate.world_size = steps.to_world_size
        and after_rate.layout = steps.after_layout
left join rivals as before_rate
    on before_rate.setting_id = steps.setting_id and before_rate.series = steps.series
        and before_rate.world_size = steps.to_world_size
        and before_rate.layout = steps.before_layout
left join crossovers as meeting
    on meeting.setting_id = steps.setting_id and meeting.series = steps.series
        and meeting.before_layout = steps.before_layout
        and meeting.after_layout = steps.after_layout
        and meeting.from_world_size = steps.from_world_size
        and meeting.to_world_size = steps.to_world_size
order by steps.setting_id, steps.series, steps.from_world_size
