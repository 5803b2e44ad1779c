-- Grain: one row per setting, series and neighbouring sizes whose advised layouts differ.
-- Needs: advised, rivals, colours, crossovers, best
-- Only changes of the advice: a change of the fastest layout within the noise is none.
-- gain: tokens_per_s of the layout after over the layout before, at to_world_size; gain_low,
-- gain_high: its interval. Null if the layout before did not run there.
-- crossing: world_size at which the two lines meet, if they meet between these sizes. crossing_low,
-- crossing_high: its interval, or the two sizes.
-- verdict: 'absent' (the layout before did not run there), 'tie' (not told apart at to_world_size: the
-- change is for later sizes), 'resolved' (the crossing has an interval) or 'unknown'.
with changes as (
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
    changes.setting_id, changes.series, best.drawn, changes.from_world_size, changes.to_world_size,
    changes.before_layout, before_colour.layout_name as before_name,
    before_colour.slot as before_slot,
    changes.after_layout, after_colour.layout_name as after_name, after_colour.slot as after_slot,
    after_rate.tokens_per_s / before_rate.tokens_per_s as gain,
    sqrt(after_rate.margin ** 2 + before_rate.margin ** 2) as gain_margin,
    gain / exp(gain_margin) as gain_low,
    gain * exp(gain_margin) as gain_high,
    crossovers.crossing,
    coalesce(crossovers.crossing_low, changes.from_world_size) as crossing_low,
    coalesce(crossovers.crossing_high, changes.to_world_size) as crossing_high,
    case
        when gain is null then 'absent'
        when abs(ln(gain)) <= gain_margin then 'tie'
        when crossovers.crossing is not null and crossovers.resolved then 'resolved'
        else 'unknown'
    end as verdict
from changes
left join crossovers
    using (setting_id, series, before_layout, after_layout, from_world_size, to_world_size)
join best on (best.setting_id, best.series, best.world_size)
    = (changes.setting_id, changes.series, to_world_size)
join colours as before_colour on (before_colour.setting_id, before_colour.layout)
    = (changes.setting_id, before_layout)
join colours as after_colour on (after_colour.setting_id, after_colour.layout)
    = (changes.setting_id, after_layout)
join rivals as after_rate
    on (after_rate.setting_id, after_rate.series, after_rate.world_size, after_rate.layout)
        = (changes.setting_id, changes.series, to_world_size, after_layout)
left join rivals as before_rate
    on (before_rate.setting_id, before_rate.series, before_rate.world_size, before_rate.layout)
        = (changes.setting_id, changes.series, to_world_size, before_layout)
order by changes.setting_id, changes.series, changes.from_world_size
