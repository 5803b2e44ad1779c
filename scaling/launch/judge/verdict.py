"""What the evidence says: one outcome and one line."""

import signal
from collections.abc import Callable
from dataclasses import dataclass

from scaling.launch.judge.watch import Evidence
from scaling.launch.start.starter import End
from scaling.launch.unsettled import KilledFromOutside
from scaling.record.rank_files import RankFailure
from scaling.record.row import Outcome

# A silence at the time limit is a hang where it is this much longer than any that was broken.
_UNUSUAL = 3.0
_SHORTEST_HANG_S = 10.0

# A rank's own fault, never the end of a peer.
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
# What schedulers and people end jobs with, or warn them by; no rank sends these to itself.
_FROM_OUTSIDE = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2}
# What gloo, NCCL and torch's store say to those whose peer is gone. An abort (SIGABRT) is often a
# second death too: communication libraries abort then.
_PEER_IS_GONE = (
    "connection closed by peer",
    "connection reset by peer",
    "connection was closed by the remote",
    "remote process exited",
    "ncclremoteerror",
    "broken pipe",
    "failed to recv, got 0 bytes",
    "connection refused",
    "gloo/transport",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A row's outcome and error message."""

    outcome: Outcome
    message: str | None = None


def verdict(evidence: Evidence, *, last_lines: dict[int, str]) -> Verdict:
    """Judge one run: causes first, then what may be their effect on others.

    A rank that ended without a word comes before what its peers raised, and those who raised for a
    reason of their own before those who say that a peer is gone.

    Args:
        evidence: what the watcher saw.
        last_lines: the last line of each rank's log, for a rank that could not say more.

    Raises:
        KilledFromOutside: the ranks were ended by somebody, which says nothing of the point.
    """
    if len(evidence.finished) == evidence.world_size:
        return Verdict(outcome="ok")  # whatever happened while they parted
    cause = _crashed(evidence) or _failed(evidence, _sure)
    if cause is None and (interrupted := _signalled(evidence, _FROM_OUTSIDE)):
        raise KilledFromOutside(_killed(*interrupted))
    return (
        cause
        or _ended_by(evidence, {signal.SIGKILL})
        or _left(evidence, last_lines)
        or _failed(evidence, _first_hand)
        or _ended_by(evidence)
        or _failed(evidence, _any)
        or _stopped(evidence)
    )


def _crashed(evidence: Evidence) -> Verdict | None:
    for rank, end in sorted(evidence.exits.items()):
        if end.code == -signal.SIGKILL and end.out_of_memory:
            message = f"rank {rank} was killed by the kernel: out of memory on the host"
            return Verdict(outcome="oom", message=message)
    return _ended_by(evidence, _CRASHES)


def _ended_by(evidence: Evidence, signals: set[signal.Signals] | None = None) -> Verdict | None:
    """A rank that one of these signals has ended, or any, and that could leave nothing."""
    ended = _signalled(evidence, signals)
    return Verdict(outcome="error", message=_killed(*ended)) if ended else None


def _signalled(evidence: Evidence, signals: set[signal.Signals] | None) -> tuple[int, End] | None:
    left = evidence.finished | evidence.failures.keys()
    for rank, end in sorted(evidence.exits.items()):
        meant = end.code < 0 if signals is None else -end.code in signals
        if meant and rank not in left:
            return rank, end
    return None


def _failed(evidence: Evidence, counts: Callable[[RankFailure], bool]) -> Verdict | None:
    """The first of the failures that count: the others mostly say that their peer is gone."""
    failures = {rank: each for rank, each in evidence.failures.items() if counts(each)}
    if not failures:
        return None
    first = min(failures, key=lambda rank: failures[rank].failed_at)
    failure = failures[first]
    return Verdict(outcome=failure.outcome, message=f"rank {first}: {failure.message}")


def _sure(failure: RankFailure) -> bool:
    """It names a cause that no peer's end looks like."""
    return failure.outcome != "error"


def _first_hand(failure: RankFailure) -> bool:
    message = failure.message.lower()
    return not any(words in message for words in _PEER_IS_GONE)


def _any(_: RankFailure) -> bool:
    return True


def _left(evidence: Evidence, last_lines: dict[int, str]) -> Verdict | None:
    """A rank that went by itself, without a result and without a word."""
    for rank, end in sorted(evidence.exits.items()):
        if end.code < 0 or rank in evidence.finished or rank in evidence.failures:
            continue
        message = f"rank {rank} ended with exit code {end.code} and no result"
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


def _killed(rank: int, end: End) -> str:
    if end.lost_with is not None:
        return f"rank {rank} was lost with {end.lost_with}"
    number = -end.code
    # real-time signals have no name of their own
    name = next((each.name for each in signal.Signals if each == number), f"signal {number}")
    return f"rank {rank} was killed by {name}"
