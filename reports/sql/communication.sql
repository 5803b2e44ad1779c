-- Grain: one row per setting, world_size and part of the communication of the layout advised there.
-- Needs: winner_rows
-- split: 'kind' (of collective) or 'axis' (of parallelism). Either split adds up to comm_s, as far
-- as the profiler could name what was sent.
-- seconds: per step, hidden behind compute or not; median over repeats.
-- from_s, to_s: where the part lies in the stack.   exposed_s: of all parts together.
with parts as (
    select
        setting_id, world_size, layout_name, 'measured' as series,
        median(comm_s) as comm_s,
        median(exposed_comm_s) as exposed_s,
        unnest([
            {'split': 'kind', 'part_order': 1, 'part': 'all-reduce', 'seconds': median(all_reduce_s)},
            {'split': 'kind', 'part_order': 2, 'part': 'all-gather', 'seconds': median(all_gather_s)},
            {'split': 'kind', 'part_order': 3, 'part': 'reduce-scatter',
                'seconds': median(reduce_scatter_s)},
            {'split': 'kind', 'part_order': 4, 'part': 'all-to-all', 'seconds': median(all_to_all_s)},
            {'split': 'kind', 'part_order': 5, 'part': 'send and receive',
                'seconds': median(send_recv_s)},
            {'split': 'kind', 'part_order': 6, 'part': 'broadcast', 'seconds': median(broadcast_s)},
            {'split': 'axis', 'part_order': 1, 'part': 'tp', 'seconds': median(tp_comm_s)},
            {'split': 'axis', 'part_order': 2, 'part': 'cp', 'seconds': median(cp_comm_s)},
            {'split': 'axis', 'part_order': 3, 'part': 'dp', 'seconds': median(dp_comm_s)},
            {'split': 'axis', 'part_order': 4, 'part': 'pp', 'seconds': median(pp_comm_s)},
            {'split': 'axis', 'part_order': 5, 'part': 'ep', 'seconds': median(ep_comm_s)}
        ], recursive := true)
    from winner_rows
    where advised
    group by setting_id, world_size, layout_name
)
select
    setting_id, world_size, layout_name, series, split, part_order, part, seconds,
    coalesce(sum(seconds) over parts_before, 0) as from_s,
    from_s + seconds as to_s,
    comm_s,
    exposed_s
from parts
where seconds > 0
window parts_before as (
    partition by setting_id, world_size, split order by part_order
    rows between unbounded preceding and 1 preceding
)
order by setting_id, world_size, split, part_order
