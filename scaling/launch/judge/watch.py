"""Waits for the ranks of a point, and ends them when they fail, fall silent or are late."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from scaling.launch.start.starter import End, Ranks
from scaling.record.rank_files import RankFailure, RankFiles, has_stepped

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
        failures=files.left(RankFailure),
        stopped=stopped,
        silence_s=silence_s,
        longest_silence_s=progress.longest_silence_s,
        suspensions_s=tuple(running.suspensions_s),
    )
