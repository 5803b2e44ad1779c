-- Grain: one row per setting, dimension, peer setting that differs only in it, and world_size.
-- Needs: settings, contenders, best
-- dimension: 'cluster' (same model and batch), 'model' (same cluster and batch) or 'context' (same
-- model and cluster, another seq_length at the same sequences or tokens per step).
-- itself: the peer is the setting; it stands among its peers.
-- matched: true for clusters and contexts, which are compared at one layout and series: the fastest
-- here of those that ran in all peers at that size. No row if there is none, because the best of
-- different layouts would compare layouts. Models are compared at each one's fastest layout.
with candidates as (
    select settings.setting_id, 'cluster' as dimension, other.setting_id as peer_id
    from settings
    join settings as other using (model, study_kind, seq_length, kept_batch_size, kept_choices)
    union all
    select settings.setting_id, 'model', other.setting_id
    from settings
    join settings as other using (cluster, study_kind, seq_length, kept_batch_size, kept_choices)
    union all
    select settings.setting_id, 'context', other.setting_id
    from settings
    join settings as other using (model, cluster, study_kind, kept_choices)
    where settings.kept_batch_size = other.kept_batch_size
        or settings.kept_batch_size * settings.seq_length
            = other.kept_batch_size * other.seq_length
),
peers as (
    select *, count(*) over (partition by setting_id, dimension) as peer_count
    from candidates
    where peer_id in (select setting_id from best where drawn)
    qualify peer_count > 1
),
common_layouts as (
    select
        peers.setting_id, dimension, contenders.world_size, contenders.series, contenders.layout,
        min(contenders.place) filter (where peer_id = peers.setting_id) as place
    from peers
    join contenders on contenders.setting_id = peer_id
    where dimension != 'model' and outcome = 'ok' and drawn
    group by all
    having count(distinct peer_id) = any_value(peer_count) and place is not null
),
chosen as (
    select
        setting_id, dimension, world_size,
        arg_min({'series': series, 'layout': layout}, place) as choice
    from common_layouts
    group by setting_id, dimension, world_size
),
points as (
    select peers.setting_id, peers.dimension, peer_id, chosen.world_size, true as matched,
        contenders.series, contenders.layout_name, contenders.tokens_per_s,
        contenders.tokens_per_s_per_gpu, contenders.mfu, contenders.model_flop_per_s_per_gpu
    from peers
    join chosen using (setting_id, dimension)
    join contenders
        on contenders.setting_id = peer_id and contenders.world_size = chosen.world_size
            and contenders.layout = choice.layout and contenders.series = choice.series
    where outcome = 'ok' and drawn
    qualify row_number() over (
        partition by peers.setting_id, peers.dimension, peer_id, chosen.world_size
        order by contenders.place
    ) = 1
    union all by name
    select peers.setting_id, dimension, peer_id, best.world_size, false as matched, series,
        layout_name, tokens_per_s, tokens_per_s_per_gpu, mfu, model_flop_per_s_per_gpu
    from peers
    join best on best.setting_id = peer_id
    where dimension = 'model' and drawn
)
select
    points.*,
    peer.model, peer.cluster, peer.gpu, peer.seq_length, peer.total_params,
    peer_id = points.setting_id as itself
from points
join settings as peer on peer.setting_id = peer_id
order by points.setting_id, dimension, peer_id, world_size
