-- Grain: one row per setting, series, world_size, two engines, and a layout that both were asked for.
-- Needs: layouts, refused
-- ratio: tokens_per_s under to_engine over that under from_engine, all other axes equal; its interval
-- is the hull of theirs. Null where one of them did not run it: its outcome then is that of its run,
-- or refused, and the reason is what it said. Of several software stacks the fastest counts.
-- series is null where neither ran it.
with asked as (
    select
        setting_id, world_size, series, engine,
        hash(*columns(lambda name: name in getvariable('axes') and name != 'engine')) as others,
        layout_name, outcome, tokens_per_s, tokens_per_s_low, tokens_per_s_high,
        error_message as reason
    from layouts
    qualify row_number() over (
        partition by setting_id, world_size, series, layout order by tokens_per_s desc nulls last
    ) = 1
),
declined as (
    select
        setting_id, world_size, engine,
        hash(*columns(lambda name: name in getvariable('axes') and name != 'engine')) as others,
        any_value(reason) as reason
    from refused
    group by all
),
tried as (
    from asked
    union all by name
    select distinct
        declined.* exclude (reason), asked.series, 'refused' as outcome, declined.reason
    from declined
    join asked using (setting_id, world_size, others)
    where asked.engine != declined.engine
)
select
    setting_id,
    series,
    world_size,
    first.engine as from_engine,
    second.engine as to_engine,
    coalesce(first.layout_name, second.layout_name) as layout_name,
    first.outcome as from_outcome,
    second.outcome as to_outcome,
    first.tokens_per_s as from_tokens_per_s,
    second.tokens_per_s as to_tokens_per_s,
    second.tokens_per_s / first.tokens_per_s as ratio,
    second.tokens_per_s_low / first.tokens_per_s_high as ratio_low,
    second.tokens_per_s_high / first.tokens_per_s_low as ratio_high,
    if(first.outcome = 'ok', second.reason, first.reason) as reason
from tried as first
join tried as second using (setting_id, series, world_size, others)
where first.engine < second.engine
order by
    setting_id, series, world_size,
    greatest(first.tokens_per_s, second.tokens_per_s) desc nulls last, layout_name
