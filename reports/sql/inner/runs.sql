-- Grain: one row per run with a step time, measured here or published.
-- Needs: measurements, settings
-- own_sigma: standard error of its ln tokens_per_s within the run; null if it states none.
select
    cell_id, setting_id, ln(tokens_per_s) as log_rate, log_sigma as own_sigma, hosts, cluster
from measurements
join settings using (setting_id)
where tokens_per_s is not null and series != 'predicted'
