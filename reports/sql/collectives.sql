-- Grain: one row per cluster, kind of collective, shape of group and message size.
-- Medians over hosts and pairs of hosts.   stride: distance between neighbours of a group, in ranks.
-- at_once: groups of this shape that sent at the same time.
-- bus_bytes_per_s: what the links carried, as nccl-tests defines it (PERFORMANCE.md): bytes of a
-- rank's whole tensor per second, times 2 (n - 1) / n for an all_reduce among n ranks and (n - 1) /
-- n for an all_gather, reduce_scatter or all_to_all.   bus_low, bus_high: by the slowest and the
-- fastest.
with timed as (
    select
        cluster, kind, ranks, stride, nodes, coalesce(groups, 1) as at_once, message_bytes,
        count(*) as probes,
        median(seconds) as seconds,
        min(coalesce(seconds_low, seconds)) as seconds_low,
        max(coalesce(seconds_high, seconds)) as seconds_high
    from study.probes
    where message_bytes is not null and ranks is not null and seconds > 0
        and coalesce(outcome, 'ok') = 'ok'
    group by cluster, kind, ranks, stride, nodes, at_once, message_bytes
),
with_bus_bytes as (
    select
        *,
        message_bytes * case
            when kind = 'all_reduce' then 2 * (ranks - 1) / ranks
            when kind in ('all_gather', 'reduce_scatter', 'all_to_all') then (ranks - 1) / ranks
            else 1
        end as bus_bytes
    from timed
)
select
    * exclude (bus_bytes, seconds_low, seconds_high),
    bus_bytes / seconds as bus_bytes_per_s,
    bus_bytes / seconds_high as bus_low,
    bus_bytes / seconds_low as bus_high
from with_bus_bytes
order by cluster, kind, nodes, ranks, stride, at_once, message_bytes
