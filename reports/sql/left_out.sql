-- Grain: one row per reason for which rows on disk stand in no table.
-- Needs: measurements
-- rows_left_out: how many; a reason that met no row is not listed. A row that cannot be (its file is
-- cut short, its numbers are impossible) has a reason of its own that begins with its file.
with counted as (
    select
        count(*) as found,
        (select count(*) from study.planned_rows) as asked_for,
        (select count(*) from measurements where series != 'predicted' and not beside_measured) as kept
    from study.rows
)
select reason, rows_left_out
from (
    select 'the point is no longer in the study' as reason, found - asked_for as rows_left_out
    from counted
    union all
    select 'a later attempt at the point replaced it' as reason, asked_for - kept as rows_left_out
    from counted
    union all
    select said as reason, count(*) as rows_left_out
    from study.unusable
    group by said
)
where rows_left_out > 0
order by reason
