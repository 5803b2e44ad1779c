-- Grain: one row per cluster of CPUs with rows that know the load of their machine.
-- Needs: planned
-- busy: rows whose load_average (processes that wanted a core in the minute before the point, with
-- those of the point before it) exceeds own_ranks, the most that the study itself starts there at
-- once: somebody else was at work, and what they measured may be too slow.
with told as (
    select cluster, world_size, load_average, max(world_size) over (partition by cluster) as own_ranks
    from study.rows
    where gpu = 'cpu' and point_id in (select point_id from planned)
)
select
    cluster,
    any_value(own_ranks) as own_ranks,
    count(*) as rows_told,
    count(*) filter (where load_average > own_ranks) as busy,
    max(load_average) as highest_load_average
from told
where load_average is not null
group by cluster
order by cluster
