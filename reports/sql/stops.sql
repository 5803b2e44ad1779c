-- Grain: one row per setting, series and reason why no further step was measured.
-- Needs: measurements
-- series: extended if only short steps ran.   points: that ran.
-- stopped: 'asked' (their number was fixed), 'precise', 'at_most' (the limit came first) or
-- 'not_steady'.
-- steps_least, steps_median, steps_most: per point, without warm-up.
select
    measurements.setting_id, measurements.series, rows.stopped,
    count(*) as points,
    min(len(steps)) as steps_least,
    median(len(steps)) as steps_median,
    max(len(steps)) as steps_most
from (
    select *, coalesce(step_times_s, short_step_times_s) as steps from study.rows
) as rows
join measurements using (point_id, attempt, started_at)
where rows.series = 'measured' and rows.outcome = 'ok' and rows.stopped is not null
group by all
order by all
