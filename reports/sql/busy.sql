-- Grain: one row per CPU cluster with rows that recorded the load of their machine.
-- Needs: planned_points
-- Whether somebody else used the machine meanwhile, so that steps may have been measured too slow.
-- own_threads: the most threads of one point on a host, whose load this is (SCALING_THREADS).
-- rows_told: rows with a load_average.   busy: those whose load_average (processes that wanted a
-- core in the minute before the point, those of the previous point included) exceeds own_threads.
with cpu_rows as (
    select
        cluster, load_average,
        max(ceil(world_size / len(hosts))::bigint * coalesce(threads_per_rank, 1))
            over (partition by cluster) as own_threads
    from study.rows
    where gpu = 'cpu' and point_id in (select point_id from planned_points)
)
select
    cluster,
    any_value(own_threads) as own_threads,
    count(*) as rows_told,
    count(*) filter (where load_average > own_threads) as busy,
    max(load_average) as highest_load_average
from cpu_rows
where load_average is not null
group by cluster
order by cluster
