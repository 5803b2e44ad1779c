-- Grain: one row per cluster, precision and shape (m, n, k) of a matrix product.
-- Needs: nothing
-- flops: 2 m n k.   flop_per_s: flops over the seconds of the median host.
-- slowest_flop_per_s, fastest_flop_per_s: of the hosts.
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
