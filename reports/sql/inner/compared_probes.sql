-- Grain: one row per probe that at least three hosts ran; slowdown holds it against their median.
-- Needs: nothing
select * from study.probes where slowdown is not null
