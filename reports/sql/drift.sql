-- Grain: one row per series, cluster, stack and test for drift (of the test `node` one per host).
-- Needs: tested_drift
-- test: 'time' (effect: ratio per day, null where that is beyond any number; change: ratio from the
-- first to the last of the runs that are compared), 'hour' (slowest hour of the runs over the
-- fastest on a daily wave, only where runs that are compared span a day) or 'node' (runs on this
-- host over the others; without those on hosts already found slow).
-- residual_of: 'repeats': runs are compared with others of their layout; 'prediction', if too few
-- were repeated: with others of their size, each by its ratio to the prediction.
-- p_value: from 2,000 shuffles; for `node` that of the largest effect among all hosts.
from tested_drift
order by series, cluster, stack_fingerprint, test, host
