-- Grain: one row per probe that at least three hosts ran, which gives it a slowdown.
-- Needs: nothing
-- slowdown: seconds over the median of the hosts.
select * from study.probes where slowdown is not null
