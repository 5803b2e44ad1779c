-- Grain: one row per comparison group, size, two engines, and a layout that both were asked for.
-- from_cell, to_cell: see `cells`; null where the engine was not asked or refused.
-- from_outcome, to_outcome: as it ran, or 'refused'.   reason: of the engine that did not run it.
with tried as (
    select
        cells.group_id, world_size, engine,
        hash(*columns(lambda name: name in getvariable('axes') and name != 'engine')) as other_choices,
        layout_name, class, cell_id, outcome, error_message as reason
    from cells
    join names using (group_id, layout)
    where speaks
),
refusals as (
    select
        group_id, world_size, engine,
        hash(*columns(lambda name: name in getvariable('axes') and name != 'engine')) as other_choices,
        any_value(reason) as reason
    from refused
    where not skipped
    group by all
),
tried_or_refused as (
    from tried
    union all by name
    select distinct refusals.* exclude (reason), 'refused' as outcome, refusals.reason
    from refusals
    join tried using (group_id, world_size, other_choices)
    where tried.engine != refusals.engine
)
select
    group_id, world_size,
    first.engine as from_engine,
    second.engine as to_engine,
    coalesce(first.layout_name, second.layout_name) as layout_name,
    ['measured', 'published', 'predicted'][greatest(first.class, second.class)] as source,
    first.outcome as from_outcome,
    second.outcome as to_outcome,
    first.cell_id as from_cell,
    second.cell_id as to_cell,
    if(first.outcome = 'ok', second.reason, first.reason) as reason
from tried_or_refused as first
join tried_or_refused as second using (group_id, world_size, other_choices)
where first.engine < second.engine
