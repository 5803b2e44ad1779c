-- Grain: one row per series, cluster, stack and test for drift (of the test `node` one per host).
-- Needs: tested_drift
-- test: 'time' (effect: ratio per day, null where that is beyond any number; change: ratio from the
-- first run to the last), 'hour' (slowest hour of the day over the fastest, only of runs that span a
-- day) or 'node' (runs on this host over the others).
-- residual_of: what step times are compared with: 'repeats', or 'prediction' if nothing was
-- repeated.
-- p_value: from 2,000 shuffles; for `node` that of the largest effect among all hosts.
from tested_drift
order by series, cluster, stack_fingerprint, test, host
