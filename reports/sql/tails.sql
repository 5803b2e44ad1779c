-- Grain: one row per setting and world_size whose fastest layout kept its step times.
-- Needs: winner_rows
-- step_time_s, step_time_p95_s: median and 95 % quantile of all repeats' measured steps, seconds;
-- one step in twenty takes longer than the latter.   steps: how many.
with steps as (
    select setting_id, series, world_size, unnest(step_times_s) as seconds
    from winner_rows
    where fastest and step_times_s is not null
)
select
    setting_id, series, world_size,
    count(*) as steps,
    median(seconds) as step_time_s,
    quantile_cont(seconds, 0.95) as step_time_p95_s
from steps
group by setting_id, series, world_size
order by setting_id, series, world_size
