"""What the evidence says: one outcome and one line."""

import signal
from dataclasses import dataclass

from scaling.launch.watch import Evidence
from scaling.measurement import Outcome

# A silence at the time limit is a hang where it is this much longer than any that was broken.
_UNUSUAL = 3.0
_SHORTEST_HANG_S = 10.0

# Signals that come from outside or from the rank's own fault. SIGABRT is left out: communication
# libraries abort when a peer is gone, so it is often the second death.
_FIRST_CAUSES = {
    signal.SIGKILL,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGTERM,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A row's outcome and error message."""

    outcome: Outcome
    message: str | None = None


def verdict(evidence: Evidence, *, oom_kills: int, last_lines: dict[int, str]) -> Verdict:
    """Judge one run.

    Args:
        evidence: what the watcher saw.
        oom_kills: processes the kernel's out-of-memory killer ended here during the run.
        last_lines: the last line of each rank's log, for a rank that could not say more.
    """
    if len(evidence.finished) == evidence.world_size:
        return Verdict(outcome="ok")  # whatever happened while they parted
    return (
        _killed(evidence, oom_kills)
        or _failed(evidence)
        or _ended(evidence, last_lines)
        or _stopped(evidence)
    )


def _killed(evidence: Evidence, oom_kills: int) -> Verdict | None:
    for rank, code in sorted(evidence.exits.items()):
        if code >= 0 or -code not in _FIRST_CAUSES:
            continue
        if -code == signal.SIGKILL and oom_kills > 0:
            message = f"rank {rank} was killed by the kernel: out of memory on the host"
            return Verdict(outcome="oom", message=message)
        return Verdict(outcome="error", message=f"rank {rank} was killed by {_name(-code)}")
    return None


def _failed(evidence: Evidence) -> Verdict | None:
    """The first failure: the others mostly say that their peer is gone."""
    if not evidence.failures:
        return None
    first = min(evidence.failures, key=lambda rank: evidence.failures[rank].failed_at)
    failure = evidence.failures[first]
    return Verdict(outcome=failure.outcome, message=f"rank {first}: {failure.message}")


def _ended(evidence: Evidence, last_lines: dict[int, str]) -> Verdict | None:
    """A rank that ended without a word."""
    for rank, code in sorted(evidence.exits.items()):
        if rank in evidence.finished:
            continue
        if code < 0:
            return Verdict(outcome="error", message=f"rank {rank} was killed by {_name(-code)}")
        message = f"rank {rank} ended with exit code {code} and no result"
        if last := last_lines.get(rank):
            message += f": {last}"
        never_ran = rank not in evidence.beats
        return Verdict(outcome="launch_failed" if never_ran else "error", message=message)
    return None


def _stopped(evidence: Evidence) -> Verdict:
    usual = max(_SHORTEST_HANG_S, _UNUSUAL * evidence.longest_silence_s)
    did = "; ".join(f"rank {rank}: {doing}" for rank, doing in sorted(evidence.beats.items()))
    last = f"last heard of {did}" if did else "no rank was ever heard of"
    if evidence.stopped == "silent" or evidence.silence_s > usual:
        return Verdict(
            outcome="hang",
            message=f"no rank got further for {evidence.silence_s:.0f} s ({last}); "
            "the ranks' logs hold their stacks",
        )
    return Verdict(outcome="timeout", message=f"the time limit passed while ranks ran ({last})")


def _name(number: int) -> str:
    """Real-time signals have no name of their own."""
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")
