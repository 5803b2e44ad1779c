"""How long ranks may take, and how long they may say nothing."""

STARTUP_S = 900.0  # imports and connections of thousands of ranks, building, compiling
HANG_AFTER_S = 300.0
_SLOWER = 3.0  # than predicted: what a prediction may be wrong by before a limit cuts a point off
_SILENT_STEPS = 10.0
_TRACED_STEPS = 10.0  # two under the profiler, each up to five times a step
_MINUTE_S = 60.0
_LONGEST_S = 7 * 86_400.0  # as a study may state at most


def point_limits(
    expected_step_s: float | None,
    warmup_steps: int,
    measured_steps: int,
    stated_time_limit_s: float | None,
) -> tuple[float, float]:
    """A point's time limit, and the silence after its first step that counts as a hang.

    A limit is there to end what does not end by itself: it is the time for the start and three
    times what all steps are predicted to take, the profiler's window included, in whole minutes.
    What a study states bounds it from above. A rank says something at each step, so ten predicted
    steps of silence are a hang, and never less than five minutes: a shared file system may be slow.

    The expected step is None where nothing is predicted (a CPU). Returns seconds from starting the
    ranks, and seconds of silence.
    """
    if expected_step_s is None:
        return stated_time_limit_s or STARTUP_S, HANG_AFTER_S
    steps_s = _SLOWER * expected_step_s * (warmup_steps + measured_steps + _TRACED_STEPS)
    limit_s = min(-((STARTUP_S + steps_s) // -_MINUTE_S) * _MINUTE_S, _LONGEST_S)
    if stated_time_limit_s is not None:
        limit_s = min(limit_s, stated_time_limit_s)
    return limit_s, max(HANG_AFTER_S, _SILENT_STEPS * expected_step_s)
