-- Grain: one row per run with a step time, measured here or published.
-- own_sigma: standard error of its ln tokens_per_s within the run; null if it states none.
-- predicted_log_rate: of its layout at its size, null without a prediction.   size_id: of the size.
select
    cell_id, point_id, group_id, ln(tokens_per_s) as log_rate, log_sigma as own_sigma, hosts, cluster,
    predicted_log_rate, hash(group_id, world_size) as size_id
from measurements
join comparison_groups using (group_id)
left join (
    select group_id, world_size, layout, mean_log_rate as predicted_log_rate
    from cells
    where class = 3
) as predicted using (group_id, world_size, layout)
where tokens_per_s is not null and source != 'predicted'
