-- Grain: one row per comparison group with a cell that ran, was published or is predicted.
-- sigma: standard deviation of ln tokens_per_s between runs of one layout at a size, the median, with
-- its 95 % interval; null if nothing ran.   assumed: nothing was repeated, so sigma is what
-- published repeats are known to differ by.
-- repeated_layouts, single_runs: layouts at their sizes that ran several times or once.
-- never_ran: layouts that were tried or predicted, and ran or fit at no size.
select
    group_id, sigma, sigma_low, sigma_high,
    count(*) filter (where class < 3 and ok_runs > 1) as repeated_layouts,
    if(sigma is null, null, repeated_layouts = 0) as assumed,
    count(*) filter (where class < 3 and ok_runs = 1) as single_runs,
    count(*) filter (where speaks and outcome = 'ok') as layouts,
    coalesce(sum(ok_runs) filter (where class < 3), 0)::bigint as runs,
    count(distinct layout) - count(distinct layout) filter (where outcome = 'ok') as never_ran
from cells
left join drawn_noise using (group_id)
group by group_id, sigma, sigma_low, sigma_high
order by group_id
