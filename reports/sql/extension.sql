-- Grain: one row per comparison group, world_size and point that ran both full steps and short ones.
-- How wrong the extension of short steps to a full one is, where one run has both.
-- error: extended over measured, less 1; null if the accumulations were not on a line (linear is
-- false), so that nothing was extended.
-- covered: the measured median lies inside the 80 % interval of the extended step.
-- seconds_of_short, seconds_of_full: total time of each kind of step, without warm-up.
select
    measurements.group_id, rows.world_size, measurements.layout, point_id, rows.repeat,
    rows.gradient_accumulation_steps,
    list_distinct(rows.short_accumulations).list_sort() as accumulations,
    rows.step_time_s, rows.step_time_low_s, rows.step_time_high_s,
    rows.extended_step_time_s, rows.extended_low_s, rows.extended_high_s,
    rows.extension_is_linear as linear,
    rows.extended_step_time_s / rows.step_time_s - 1 as error,
    rows.step_time_s between rows.extended_low_s and rows.extended_high_s as covered,
    rows.step_fixed_s, rows.micro_batch_s,
    list_sum(rows.short_step_times_s) as seconds_of_short,
    list_sum(rows.step_times_s) as seconds_of_full
from study.rows as rows
join measurements using (point_id, attempt, started_at)
where rows.source = 'measured' and measurements.source = 'measured'
    and rows.outcome = 'ok' and rows.step_time_s is not null and rows.short_step_times_s is not null
order by group_id, world_size, abs(error) desc nulls last, point_id
