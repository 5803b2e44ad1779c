-- Grain: one row per setting, world_size, and ordered pair of layouts that are the same training there.
-- Needs: factors, names, planned_points
-- A ZeRO shard group of as many ranks as there are replicas shards nothing further: at that size
-- the layout trains exactly as the same layout without zero_shard_size.
-- Without tensor parallelism sequence_parallel shards nothing, at any size; some publishers state it.
with choices as (
    select factors.layout_id, factor_id, others, names.*
    from factors
    join (
        select setting_id, layout, layout_id, tp, pp, cp, zero_shard_size, sequence_parallel
        from names
    ) as names using (layout_id)
    where factor in (
        select axis from catalogue.axes where name in ('zero_shard_size', 'sequence_parallel')
    )
),
sizes as (
    select distinct setting_id, world_size from planned_points
),
pairs as (
    select
        one.setting_id, sizes.world_size, one.layout, other.layout as same_as,
        one.layout_id, other.layout_id as same_id
    from choices as one
    join choices as other using (setting_id, factor_id, others)
    join sizes using (setting_id)
    where (
            one.zero_shard_size * one.tp * one.pp * one.cp = sizes.world_size
            and other.zero_shard_size is null
        )
        or (one.tp = 1 and one.sequence_parallel and not other.sequence_parallel)
)
from pairs
union all
select setting_id, world_size, same_as as layout, layout as same_as, same_id, layout_id from pairs
