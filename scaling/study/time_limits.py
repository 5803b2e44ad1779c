"""A point's time limit, and how long its ranks may be silent."""

# Seconds from an allocation to the first step, where no row tells: imports, connections, building.
TYPICAL_STARTUP_S = 60.0
MOST_STARTUP_S = (
    900.0  # the most: imports and connections of thousands of ranks, building, compiling
)
HANG_AFTER_S = 300.0
_MAX_SLOWDOWN = 3.0  # measured over predicted step time, beyond which the limit ends a point
_SILENT_STEPS = 10.0
_TRACED_STEPS = 10.0  # two under the profiler, each up to five times a step
_MINUTE_S = 60.0
_LONGEST_S = 7 * 86_400.0  # the most a study may state


def point_limits(
    expected_step_s: float | None,
    warmup_steps: int,
    measured_steps: int,
    stated_time_limit_s: float | None,
) -> tuple[float, float]:
    """Seconds until a point is ended, and seconds of silence after its first step that mean a hang.

    The limit ends what does not end by itself. It is the start plus three times the predicted time
    of all steps, the profiler's included, in whole minutes. It is at most what the study states.
    Ranks report every step, so ten predicted steps of silence are a hang; but never less than five
    minutes, since a shared file system may be slow. `expected_step_s` is None on a CPU, where
    nothing is predicted.
    """
    if expected_step_s is None:
        return stated_time_limit_s or MOST_STARTUP_S, HANG_AFTER_S
    steps_s = _MAX_SLOWDOWN * expected_step_s * (warmup_steps + measured_steps + _TRACED_STEPS)
    limit_s = min(-((MOST_STARTUP_S + steps_s) // -_MINUTE_S) * _MINUTE_S, _LONGEST_S)
    if stated_time_limit_s is not None:
        limit_s = min(limit_s, stated_time_limit_s)
    return limit_s, max(HANG_AFTER_S, _SILENT_STEPS * expected_step_s)
