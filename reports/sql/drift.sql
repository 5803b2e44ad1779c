-- Grain: one row per series, cluster, stack and test of residuals; of `node` one per host.
-- Needs: tested_drift
-- test: time (effect: ratio a day), hour (ratio between the slowest and the fastest hour of the day),
-- node (ratio of the runs on this host to the others).   residual_of: repeats, or prediction where
-- nothing was repeated.   p_value: of 2,000 shuffles; of node for the largest of all hosts.
from tested_drift
order by series, cluster, stack_fingerprint, test, host
