-- Grain: one row per reason for which rows on disk are in no table.
-- rows_excluded: how many; a reason without rows is not listed. A row that cannot be right (its
-- file is cut short, its numbers are impossible) has a reason of its own, which begins with its
-- file.
with counts as (
    select
        count(*) as on_disk,
        (select count(*) from study.rows semi join study.points using (point_id)) as planned,
        (select count(*) from measurements where source != 'predicted') as kept
    from study.rows
)
select reason, rows_excluded
from (
    select 'the point is no longer in the study' as reason, on_disk - planned as rows_excluded
    from counts
    union all
    select 'a later attempt at the point replaced it' as reason, planned - kept as rows_excluded
    from counts
    union all
    select reason, count(*) as rows_excluded
    from study.unusable
    group by reason
)
where rows_excluded > 0
order by reason
