-- Grain: one row per setting, world_size and two layouts that are the same training there, both ways.
-- Needs: factors, names, planned
-- ZeRO shards of as many ranks as there are replicas are no shards: at that size the same layout
-- without zero_shard_size is the same training.
with shards as (
    select factors.layout_id, factor_id, others, names.setting_id, layout, zero_shard_size,
        names.zero_shard_size * names.tp * names.pp * names.cp as world_size
    from factors
    join names using (layout_id)
    where factor = (select axis from catalogue.axes where name = 'zero_shard_size')
),
pairs as (
    select cut.setting_id, cut.world_size, cut.layout as cut_layout, whole.layout as whole_layout
    from shards as cut
    join shards as whole using (setting_id, factor_id, others)
    semi join planned
        on planned.setting_id = cut.setting_id and planned.world_size = cut.world_size
    where cut.zero_shard_size is not null and whole.zero_shard_size is null
)
select setting_id, world_size, cut_layout as layout, whole_layout as same from pairs
union all
select setting_id, world_size, whole_layout as layout, cut_layout as same from pairs
