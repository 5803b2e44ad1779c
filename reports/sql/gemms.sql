-- Grain: one row per cluster, precision and shape of a matrix product.
-- Needs: nothing
-- flop_per_s: 2 m n k over the median seconds, median over hosts.   flops: 2 m n k.
-- slowest, fastest: of the hosts.
with timed as (
    select cluster, coalesce(precision, 'bf16') as precision, m, n, k, 2e0 * m * n * k as flops,
        seconds
    from study.probes
    where kind = 'gemm' and seconds > 0 and coalesce(outcome, 'ok') = 'ok'
)
select
    cluster, precision, m, n, k, flops,
    flops / median(seconds) as flop_per_s,
    flops / max(seconds) as slowest_flop_per_s,
    flops / min(seconds) as fastest_flop_per_s,
    count(*) as probes
from timed
group by cluster, precision, m, n, k, flops
order by cluster, precision, flops, m, n, k
