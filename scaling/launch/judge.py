"""Watch ranks while they run, and judge the outcome once they have ended.

Ranks that fail, hang or exceed the time limit are killed. Evidence becomes outcome and message.
"""

import signal
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from scaling.launch.not_measured import end_if_told
from scaling.launch.start.starter import Ranks
from scaling.record.rank_files import RankExit, RankFailure, RankFiles, has_stepped
from scaling.record.row import Outcome

_POLL_S = 0.05
_HEARTBEATS_EVERY_S = 0.5  # reading every rank's file loads a shared file system
_LAST_RECORDS_S = 1.0  # time for the other ranks to record what they saw after one has failed
_STACKS_S = 1.0  # time for the ranks to write their stacks
_EXIT_S = 20.0  # time for ranks to exit once all have left their results
# A longer gap between two polls means that this process was suspended while the clock ran on, as
# `scontrol suspend` suspends all of a job.
_SUSPENDED_S = 10.0

Stopped = Literal["late", "silent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence about the ranks once none of them runs."""

    world_size: int
    exits: dict[int, RankExit]  # of ranks that ended by themselves
    beats: dict[int, str]  # last heartbeat of each rank
    finished: frozenset[int]  # ranks that left a result
    failures: dict[int, RankFailure]
    stopped: Stopped | None  # why the watcher ended the ranks
    silence_s: float  # since any rank last made progress
    longest_silence_s: float  # between two signs of progress
    # seconds of each suspension from outside; the other times here exclude them
    suspensions_s: tuple[float, ...] = ()
    timed: frozenset[int] = frozenset()  # ranks that only had steps under the profiler left
    mute: frozenset[int] = frozenset()  # ranks that were asked for their stacks and left none


class _ClockWithoutSuspensions:
    """A clock that stands still while this process is suspended."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._last_read = clock, clock()
        self.suspensions_s: list[float] = []

    def __call__(self) -> float:
        now = self._clock()
        if now - self._last_read > _SUSPENDED_S:
            self.suspensions_s.append(now - self._last_read)
        self._last_read = now
        return now - sum(self.suspensions_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds after which ranks are ended, not counting suspensions."""

    limit_s: float  # since their start
    hang_after_s: float  # without progress of any rank
    start_hang_after_s: float  # the same, before the first step


def watch(
    ranks: Ranks,
    files: RankFiles,
    world_size: int,
    limits: Limits,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Evidence:
    """Wait until all ranks ended, one failed, or a limit was reached; then kill what still runs."""
    clock = running_clock = _ClockWithoutSuspensions(clock)
    started = heard_at = read_beats_at = clock()
    beats: dict[int, str] = {}  # the last news of any rank: ranks step together
    patience_s, longest_silence_s = limits.start_hang_after_s, 0.0
    stopped: Stopped | None = None
    finished_at: float | None = None
    while True:
        exits, now = ranks.exits(), clock()
        if len(exits) == world_size:
            break
        # a rank that succeeds leaves its result before it ends; peers of any other wait for ever
        if exits and not exits.keys() <= files.finished(exits):
            deadline = clock() + _LAST_RECORDS_S
            while len(exits := ranks.exits()) < world_size and clock() < deadline:
                sleep(_POLL_S)
            break
        if now >= read_beats_at:
            read_beats_at = now + _HEARTBEATS_EVERY_S
            if (heard := files.beats()) != beats:
                longest_silence_s = max(longest_silence_s, now - heard_at)
                beats, heard_at = heard, now
                if any(map(has_stepped, beats.values())):
                    patience_s = limits.hang_after_s
            if finished_at is None and len(files.finished(exits)) == world_size:
                finished_at = now
        if finished_at is not None:
            if now - finished_at >= _EXIT_S:
                break
        elif now - started >= limits.limit_s:
            stopped = "late"
        elif now - heard_at >= patience_s:
            stopped = "silent"
        if stopped is not None:
            if files.leave_stacks:  # others would end
                ranks.signal(signal.SIGUSR1)
                sleep(_STACKS_S)
            break
        end_if_told()
        sleep(_POLL_S)
    ranks.kill()
    return Evidence(
        world_size=world_size,
        exits=exits,
        beats=files.beats(),
        finished=files.finished(exits),
        failures=files.failures(exits),
        stopped=stopped,
        silence_s=now - heard_at,  # not counting the time that asking for stacks takes
        longest_silence_s=longest_silence_s,
        suspensions_s=tuple(running_clock.suspensions_s),
        timed=files.timed(),
    )


Exits = Mapping[int, RankExit]  # by rank
Failures = Sequence[tuple[int, RankFailure]]  # with their ranks

# At the time limit, a silence this many times longer than any earlier one counts as a hang.
_HANG_RATIO = 3.0
_SHORTEST_HANG_S = 10.0

# Signals that a rank's own fault causes, never the end of a peer.
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
# Signals by which schedulers and people warn or end jobs; no rank sends these to itself.
_FROM_OUTSIDE = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2}
# Messages of gloo, NCCL and torch's store when a peer is gone. SIGABRT is often a consequence of
# that too: communication libraries abort then.
_PEER_LOST = (
    "connection closed by peer", "connection reset by peer", "connection was closed by the remote",
    "remote process exited", "ncclremoteerror", "broken pipe", "failed to recv, got 0 bytes",
    "connection refused", "gloo/transport",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A row's outcome and error message."""

    outcome: Outcome
    message: str | None = None
    memory_limit_bytes: int | None = None  # of the job, if it killed a rank
    lost_peers: bool = False  # ranks only report that others are gone, and none has ended
    from_outside: bool = False  # somebody ended the ranks, which says nothing about the point


def verdict(
    evidence: Evidence,
    last_error: Callable[[int], str | None],
    *,
    on_cpu: bool = False,
    memory_limit_bytes: int | None = None,
) -> Verdict:
    """Judge one run: causes first, then what may be their effect on other ranks.

    A rank that ended without leaving a record comes before errors that its peers raised. Errors
    with a cause of their own come before reports that a peer is gone.

    Args:
        evidence: what is known once no rank runs.
        last_error: gives the last line of a rank's log that is an error, if it left no record.
        on_cpu: whether the host's memory is that of the ranks' device too.
        memory_limit_bytes: of the job on a node; None if it has no limit of its own.
    """
    if len(evidence.finished | evidence.timed) == evidence.world_size:
        # whatever happened while the ranks exited, or under the profiler, which takes memory too
        return Verdict(outcome="ok")
    recorded = evidence.finished | evidence.failures.keys()
    unexplained = {
        rank: end for rank, end in sorted(evidence.exits.items()) if rank not in recorded
    }
    # the earliest failure explains the later ones, which mostly report a lost peer
    failures = sorted(evidence.failures.items(), key=lambda item: item[1].failed_at)
    with_cause = [item for item in failures if item[1].outcome != "error"]
    first_hand = [
        item for item in failures if not any(said in item[1].message.lower() for said in _PEER_LOST)
    ]
    return (
        _out_of_memory(evidence, on_cpu, memory_limit_bytes)
        or _killed(unexplained, _CRASHES)
        or _failed(with_cause)
        or _killed(unexplained, _FROM_OUTSIDE, from_outside=True)
        or _killed(unexplained, {signal.SIGKILL})
        or _exited_without_result(unexplained, last_error, started=evidence.beats.keys())
        or _failed(first_hand)
        or _killed(unexplained)
        or _failed(failures, lost_peers=True)
        or _hang_or_timeout(evidence)
    )


def _out_of_memory(evidence: Evidence, on_cpu: bool, limit: int | None) -> Verdict | None:
    """The verdict if a rank died for lack of host memory.

    Only the device's memory says something about the layout. A job's limit is a setting.
    """
    for rank, end in sorted(evidence.exits.items()):
        if end.code != -signal.SIGKILL or not end.out_of_memory:
            continue
        if limit is not None:
            said = f"the job's memory limit (--mem, {limit / 2**30:.3g} GiB) killed rank {rank}"
            message = f"{said}; set slurm: mem_mb"
            return Verdict(outcome="error", message=message, memory_limit_bytes=limit)
        message = f"rank {rank} was killed by the kernel: out of memory on the host"
        return Verdict(outcome="oom" if on_cpu else "error", message=message)
    return None


def _killed(
    exits: Exits, signals: set[signal.Signals] | None = None, *, from_outside: bool = False
) -> Verdict | None:
    """The verdict on the first rank that a signal ended, one of `signals` if given."""
    for rank, end in exits.items():
        number = -end.code
        if number <= 0 or (signals is not None and number not in signals):
            continue
        # real-time signals have no name
        name = next((known.name for known in signal.Signals if known == number), f"signal {number}")
        how = f"killed by {name}" if end.lost_with is None else f"lost with {end.lost_with}"
        message = f"rank {rank} was {how}"
        return Verdict(outcome="error", message=message, from_outside=from_outside)
    return None


def _failed(failures: Failures, *, lost_peers: bool = False) -> Verdict | None:
    for rank, failure in failures:
        message = f"rank {rank}: {failure.message}"
        return Verdict(outcome=failure.outcome, message=message, lost_peers=lost_peers)
    return None


def _exited_without_result(
    exits: Exits, last_error: Callable[[int], str | None], *, started: Set[int]
) -> Verdict | None:
    """The verdict on the first rank that exited by itself, without a result or a failure record."""
    for rank, end in exits.items():
        if end.code >= 0:
            why = last_error(rank) or "no line of its log is an error"
            return Verdict(
                outcome="error" if rank in started else "launch_failed",
                message=f"rank {rank} ended with exit code {end.code} and no result: {why}",
            )
    return None


def _last_heard(beats: Mapping[int, str], world_size: int) -> str:
    """The last beats of ranks, those that are behind first, and which never said anything."""
    if not beats:
        return "no rank was ever heard of"
    by_beat: dict[str, list[int]] = {}
    for rank in sorted(beats):
        by_beat.setdefault(beats[rank], []).append(rank)
    groups = sorted(by_beat.items(), key=lambda group: len(group[1]))  # fewest: those behind
    said = "; ".join(f"{ranks_named(ranks)}: {beat}" for beat, ranks in groups)
    silent = [rank for rank in range(world_size) if rank not in beats]
    never = f"; never heard of {ranks_named(silent)}" if silent else ""
    return f"last heard of {said}{never}"


def ranks_named(ranks: Sequence[int]) -> str:
    """Sorted ranks in words: `rank 3`, `ranks 0-2, 5`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
    return f"rank{'s' * (len(ranks) > 1)} {text}"


def _hang_or_timeout(evidence: Evidence) -> Verdict:
    longest_usual_s = max(_SHORTEST_HANG_S, _HANG_RATIO * evidence.longest_silence_s)
    last = _last_heard(evidence.beats, evidence.world_size)
    mute = ""
    if 0 < len(evidence.mute) < evidence.world_size:  # other programs have no stacks to leave
        mute = f"; {ranks_named(sorted(evidence.mute))} did not answer"
    if evidence.stopped == "silent" or evidence.silence_s > longest_usual_s:
        return Verdict(
            outcome="hang",
            message=f"no rank got further for {evidence.silence_s:.0f} s ({last})"
            f"{mute}; the ranks' logs hold their stacks",
        )
    return Verdict(outcome="timeout", message=f"the time limit passed while ranks ran ({last})")
