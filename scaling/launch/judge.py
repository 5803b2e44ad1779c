"""What becomes of ranks: watched while they live, judged when they are gone.

Those that fail, fall silent or are late are ended; what the evidence says is one outcome and line.
"""

import signal
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from scaling.launch.start.starter import End, Ranks
from scaling.launch.unsettled import KilledFromOutside
from scaling.record.rank_files import RankFailure, RankFiles, has_stepped
from scaling.record.row import Outcome

_POLL_S = 0.05
_BEATS_EVERY_S = 0.5  # reading every rank's file costs a shared file system something
_SETTLE_S = 1.0  # for the other ranks to say what they saw when one has failed
_STACKS_S = 1.0  # for the ranks to write their stacks
_PARTING_S = 20.0  # for a rank to end once all have left their results
# A longer pause between two looks was none of ours: this process was stopped, as `scontrol suspend`
# stops all of a job, while the clocks ran on.
_STOPPED_S = 10.0

Stopped = Literal["late", "silent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of the ranks once none of them runs."""

    world_size: int
    exits: dict[int, End]  # of the ranks that ended by themselves
    beats: dict[int, str]
    finished: frozenset[int]  # the ranks that left a result
    failures: dict[int, RankFailure]
    stopped: Stopped | None  # why the watcher ended them
    silence_s: float  # since any rank last got further
    longest_silence_s: float  # that was broken
    # seconds, each time that everything was stopped from outside: in no other number of these
    suspensions_s: tuple[float, ...] = ()


class _Running:
    """A clock that stands still while this process is stopped."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._looked_at = clock, clock()
        self.suspensions_s: list[float] = []

    def __call__(self) -> float:
        now = self._clock()
        if now - self._looked_at > _STOPPED_S:
            self.suspensions_s.append(now - self._looked_at)
        self._looked_at = now
        return now - sum(self.suspensions_s)


@dataclass(slots=True)
class _Progress:
    """When a rank last got further. Start-up counts: a first sign of life is progress too."""

    last: float
    beats: dict[int, str] = field(default_factory=dict)
    longest_silence_s: float = 0.0
    has_stepped: bool = False  # any rank: they step together

    def see(self, beats: dict[int, str], now: float) -> None:
        if beats != self.beats:
            self.longest_silence_s = max(self.longest_silence_s, now - self.last)
            self.beats, self.last = beats, now
            self.has_stepped |= any(map(has_stepped, beats.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds after which ranks are ended; those in which everything was suspended do not count."""

    limit_s: float  # from their start
    hang_after_s: float  # without any rank getting further
    start_hang_after_s: float  # the same until a rank has done its first step


def watch(
    ranks: Ranks,
    files: RankFiles,
    world_size: int,
    limits: Limits,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Evidence:
    """Watch until all have ended, one has failed, or their time is up. Kills what still runs."""
    clock = running = _Running(clock)
    started = clock()
    progress, read_beats_at = _Progress(started), started
    stopped: Stopped | None = None
    finished_at: float | None = None
    while True:
        exits, now = ranks.exits(), clock()
        if len(exits) == world_size:
            break
        # a rank that ends well leaves its result first; the others would wait for it for ever
        without_result = exits and not exits.keys() <= files.finished()
        if without_result or any(end.code for end in exits.values()):
            until = clock() + _SETTLE_S
            while len(exits := ranks.exits()) < world_size and clock() < until:
                sleep(_POLL_S)
            break
        if now >= read_beats_at:
            progress.see(files.beats(), now)
            read_beats_at = now + _BEATS_EVERY_S
            if finished_at is None and len(files.finished()) == world_size:
                finished_at = now
        if finished_at is not None:
            if now - finished_at >= _PARTING_S:
                break
        elif now - started >= limits.limit_s:
            stopped = "late"
        elif now - progress.last >= (
            limits.hang_after_s if progress.has_stepped else limits.start_hang_after_s
        ):
            stopped = "silent"
        if stopped is not None:
            ranks.signal(signal.SIGUSR1)
            sleep(_STACKS_S)
            break
        sleep(_POLL_S)
    silence_s = clock() - progress.last
    ranks.kill()
    return Evidence(
        world_size=world_size,
        exits=exits,
        beats=files.beats(),
        finished=files.finished(),
        failures=files.read(RankFailure),
        stopped=stopped,
        silence_s=silence_s,
        longest_silence_s=progress.longest_silence_s,
        suspensions_s=tuple(running.suspensions_s),
    )


Ends = Mapping[int, End]  # by rank
Failures = Sequence[tuple[int, RankFailure]]  # with their ranks

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


def verdict(evidence: Evidence, last_line: Callable[[int], str | None]) -> Verdict:
    """Judge one run: causes first, then what may be their effect on others.

    A rank that ended without a word comes before what its peers raised, and those who raised for a
    reason of their own before those who say that a peer is gone.

    The last line of a rank's log is for a rank that could not say more.

    Raises:
        KilledFromOutside: the ranks were ended by somebody, which says nothing of the point.
    """
    if len(evidence.finished) == evidence.world_size:
        return Verdict(outcome="ok")  # whatever happened while they parted
    left = evidence.finished | evidence.failures.keys()
    silent = {rank: end for rank, end in sorted(evidence.exits.items()) if rank not in left}
    # the first explains the others, which mostly say that their peer is gone
    failures = sorted(evidence.failures.items(), key=lambda each: each[1].failed_at)
    names_cause = [each for each in failures if each[1].outcome != "error"]
    first_hand = [each for each in failures if not _says_peer_is_gone(each[1].message)]
    cause = _out_of_memory(evidence) or _killed(silent, _CRASHES) or _failed(names_cause)
    if cause is None and (interrupted := _killed(silent, _FROM_OUTSIDE)):
        raise KilledFromOutside(interrupted.message)
    return (
        cause
        or _killed(silent, {signal.SIGKILL})
        or _gone(silent, last_line, began=evidence.beats.keys())
        or _failed(first_hand)
        or _killed(silent)
        or _failed(failures)
        or _stopped(evidence)
    )


def _out_of_memory(evidence: Evidence) -> Verdict | None:
    for rank, end in sorted(evidence.exits.items()):
        if end.code == -signal.SIGKILL and end.out_of_memory:
            message = f"rank {rank} was killed by the kernel: out of memory on the host"
            return Verdict(outcome="oom", message=message)
    return None


def _killed(silent: Ends, signals: set[signal.Signals] | None = None) -> Verdict | None:
    """The first rank that one of these signals has ended, or any, and that could leave nothing."""
    for rank, end in silent.items():
        number = -end.code
        if number <= 0 or (signals is not None and number not in signals):
            continue
        # real-time signals have no name of their own
        name = next((each.name for each in signal.Signals if each == number), f"signal {number}")
        how = f"killed by {name}" if end.lost_with is None else f"lost with {end.lost_with}"
        return Verdict(outcome="error", message=f"rank {rank} was {how}")
    return None


def _failed(failures: Failures) -> Verdict | None:
    """The first of them."""
    for rank, failure in failures:
        return Verdict(outcome=failure.outcome, message=f"rank {rank}: {failure.message}")
    return None


def _says_peer_is_gone(message: str) -> bool:
    return any(words in message.lower() for words in _PEER_IS_GONE)


def _gone(
    silent: Ends, last_line: Callable[[int], str | None], *, began: Set[int]
) -> Verdict | None:
    """The first rank that went by itself, without a result and without a word."""
    for rank, end in silent.items():
        if end.code < 0:
            continue
        message = f"rank {rank} ended with exit code {end.code} and no result"
        if last := last_line(rank):
            message += f": {last}"
        return Verdict(outcome="error" if rank in began else "launch_failed", message=message)
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
