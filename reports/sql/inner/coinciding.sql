-- Grain: one row per setting, world_size, and ordered pair of layouts that are the same training there.
-- Needs: factors, names, planned_points
-- A ZeRO shard group of as many ranks as there are replicas shards nothing further: at that size
-- the layout trains exactly as the same layout without zero_shard_size.
with shard_choices as (
    select
        factors.layout_id, factor_id, others, names.setting_id, layout, zero_shard_size,
        names.zero_shard_size * names.tp * names.pp * names.cp as world_size
    from factors
    join names using (layout_id)
    where factor = (select axis from catalogue.axes where name = 'zero_shard_size')
),
pairs as (
    select
        grouped.setting_id, grouped.world_size,
        grouped.layout as grouped_layout, plain.layout as plain_layout
    from shard_choices as grouped
    join shard_choices as plain using (setting_id, factor_id, others)
    semi join planned_points
        on planned_points.setting_id = grouped.setting_id
        and planned_points.world_size = grouped.world_size
    where grouped.zero_shard_size is not null and plain.zero_shard_size is null
)
select setting_id, world_size, grouped_layout as layout, plain_layout as same_as from pairs
union all
select setting_id, world_size, plain_layout as layout, grouped_layout as same_as from pairs
