-- Grain: one row per setting, series, world_size, two engines, and a layout that both were asked for.
-- Needs: layouts, ranking, refused
-- ratio: tokens_per_s under to_engine over that under from_engine, with equal choices on all other
-- axes.
-- ratio_low, ratio_high: the ratio within the margins of the two rates (see `ranking`), so the engines
-- are told apart where these exclude 1. Of several stacks the fastest counts.
-- from_outcome, to_outcome: as it ran, or 'refused'.   reason: of the engine that did not run it.
-- series: null if neither ran it.
with tried_layouts as (
    select
        layouts.setting_id, layouts.world_size, layouts.series, engine,
        hash(*columns(lambda name: name in getvariable('axes') and name != 'engine')) as other_choices,
        layouts.layout_name, outcome, layouts.tokens_per_s, margin, error_message as reason
    from layouts
    left join (
        select setting_id, series, world_size, layout, stack_fingerprint, margin from ranking
    ) using (setting_id, series, world_size, layout, stack_fingerprint)
    qualify row_number() over (
        partition by layouts.setting_id, layouts.world_size, layouts.series, layout
        order by tokens_per_s desc nulls last
    ) = 1
),
refusals as (
    select
        setting_id, world_size, engine,
        hash(*columns(lambda name: name in getvariable('axes') and name != 'engine')) as other_choices,
        any_value(reason) as reason
    from refused
    where not skipped
    group by all
),
tried_or_refused as (
    from tried_layouts
    union all by name
    select distinct
        refusals.* exclude (reason), tried_layouts.series, 'refused' as outcome, refusals.reason
    from refusals
    join tried_layouts using (setting_id, world_size, other_choices)
    where tried_layouts.engine != refusals.engine
)
select
    setting_id, series, world_size,
    first.engine as from_engine,
    second.engine as to_engine,
    coalesce(first.layout_name, second.layout_name) as layout_name,
    first.outcome as from_outcome,
    second.outcome as to_outcome,
    first.tokens_per_s as from_tokens_per_s,
    second.tokens_per_s as to_tokens_per_s,
    second.tokens_per_s / first.tokens_per_s as ratio,
    ratio / exp(sqrt(first.margin ** 2 + second.margin ** 2)) as ratio_low,
    ratio * exp(sqrt(first.margin ** 2 + second.margin ** 2)) as ratio_high,
    if(first.outcome = 'ok', second.reason, first.reason) as reason
from tried_or_refused as first
join tried_or_refused as second using (setting_id, series, world_size, other_choices)
where first.engine < second.engine
order by
    setting_id, series, world_size,
    greatest(first.tokens_per_s, second.tokens_per_s) desc nulls last, layout_name
