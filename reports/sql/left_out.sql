-- Grain: one row per reason for which rows on disk stand in no table.
-- Needs: planned
-- rows_left_out: how many; a reason that met no row is not listed.
with reasons as (
    select
        case
            when point_id not in (select point_id from planned)
                then 'the point is no longer in the study'
            when attempt < max(attempt) over (partition by point_id, series)
                then 'a later attempt at the point replaced it'
        end as reason
    from study.rows
)
select reason, count(*) as rows_left_out
from reasons
where reason is not null
group by reason
order by reason
