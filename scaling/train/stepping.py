"""Run the steps of a point: full ones and short ones until there are enough, then traced ones."""

import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from scaling.cluster.processors import Processors
from scaling.record.bootstrap import StepsVerdict, is_check_due, judge_steps
from scaling.record.extension import Extension, estimate_full_step
from scaling.record.rank_files import RankFiles
from scaling.record.row import Stopped
from scaling.study.point import Point
from scaling.study.short_steps import short_step_rounds, short_step_sizes, shuffled_rounds
from scaling.train.data import Feed
from scaling.train.engines.trainer import Beat, Trainer
from scaling.train.failures import require_finite
from scaling.train.kernels.compiled import graphs_compiled
from scaling.train.measure import trace
from scaling.train.measure.peak_memory import allocator_trouble
from scaling.train.measure.power import PowerLog
from scaling.train.measure.window import split_step_time, unusable_reason
from scaling.train.parallel.groups import Groups

_log = logging.getLogger(__name__)

# Steps are slower under the profiler, and its events must be read: allow this many slowest steps,
# and this many seconds.
_TRACED_MARGIN = 5 * (trace.DISCARDED + trace.STEPS)
_STARTUP_MARGIN_S = 10.0


class Stopwatch:
    """Times work by the host's monotonic clock or, on a GPU, by CUDA events on a drained device.

    Kernels run asynchronously and engines use several streams, while an event waits for one stream
    only. So the whole device is drained before each event is recorded.
    """

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.name = "cuda_event" if on_gpu else "perf_counter"
        self._marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 if on_gpu else 0)]

    def seconds_of(self, work: Callable[[], object]) -> float:
        """Do this work when all work queued before is done; seconds until all it queued is done."""
        if not self._marks:
            started = time.perf_counter()
            work()
            return time.perf_counter() - started
        start, stop = self._marks
        torch.cuda.synchronize()
        start.record()
        work()
        torch.cuda.synchronize()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1000  # from milliseconds


@dataclass(slots=True)
class StepRunner:
    """Runs a rank's steps, one series after another; all ranks run the same series.

    `steps_done` counts steps of every kind and selects the data of the next one.
    """

    point: Point
    trainer: Trainer
    groups: Groups
    files: RankFiles
    beat: Beat
    rank: int
    device: torch.device
    stopwatch: Stopwatch
    steps_done: int = 0
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float | None] = field(default_factory=list)
    trouble: dict[str, int] = field(default_factory=dict)  # of the measured steps of every kind
    processors: dict[str, Any] | None = None  # their use within the longest series

    def run_full_steps(self, power: PowerLog | None) -> dict[str, Any]:
        """Run as many full steps as the study asks for, or until their median is precise enough.

        Returns:
            Fields of this rank's result. `metered_steps` are those that its power covers, with the
            steps that are dropped as warm-up later.
        """
        point = self.point
        at_least = point.at_least_steps or point.measured_steps
        slowest: list[float] = []  # seconds of each measured step on its slowest rank

        def verdict() -> StepsVerdict:
            assert point.until is not None
            return judge_steps(slowest, at_least=at_least, until=point.until)

        def is_enough(times: list[float]) -> bool:
            if point.until is None:
                return False
            slowest.extend(self._slowest(times[-1:]))
            if not is_check_due(len(slowest), at_least):
                return False
            return bool(self._rank_0_decides(verdict().enough))

        times = self._run(
            [self._full_count] * (point.warmup_steps + point.measured_steps),
            warmup_steps=point.warmup_steps,
            is_enough=is_enough,
            power=power,
        )
        power_use = {} if power is None else power.stop()
        stopped: Stopped = "asked"
        dropped = 0
        if point.until is not None:
            final = verdict()
            dropped = self._rank_0_decides(final.dropped)
            stopped = "precise" if final.enough else "at_most"
            stopped = stopped if final.steady else "not_steady"
        return {
            "step_times_s": times[dropped:],
            "warmup_steps": point.warmup_steps + dropped,
            "stopped": stopped,
            "metered_steps": len(times),
            **power_use,
        }

    def run_short_steps(self, *, warmup_steps: int) -> tuple[dict[str, Any], bool]:
        """Run rounds of short steps in random order, so that drift does not look like a slope.

        Args:
            warmup_steps: steps with the fewest micro-batches before the first round.

        Returns:
            Fields of this rank's result; whether step time is linear in micro-batches.
        """
        point = self.point
        counts = short_step_sizes(point.layout)
        at_least = short_step_rounds(point.at_least_steps or point.measured_steps)
        turns = shuffled_rounds(counts, short_step_rounds(point.measured_steps), point.seed)

        def extension_of(times: list[float]) -> Extension | None:
            return estimate_full_step(turns[: len(times)], self._slowest(times), self._full_count)

        def is_enough(times: list[float]) -> bool:
            whole_rounds, remainder = divmod(len(times), len(counts))
            if point.until is None or remainder or not is_check_due(whole_rounds, at_least):
                return False
            return self._is_precise(extension_of(times))

        times = self._run(
            [counts[0]] * warmup_steps + turns,
            warmup_steps=warmup_steps,
            is_enough=is_enough,
        )
        extension = extension_of(times)
        stopped: Stopped = "asked"
        if point.until is not None:
            stopped = "precise" if self._is_precise(extension) else "at_most"
        taken = {"short_step_times_s": times, "short_accumulations": turns[: len(times)]}
        linear = bool(self._rank_0_decides(extension is not None and extension.linear))
        return taken | {"stopped": stopped}, linear

    def _is_precise(self, extension: Extension | None) -> bool:
        until = self.point.until
        precise = extension is not None and until is not None and extension.half_width <= until
        return bool(self._rank_0_decides(precise))

    def run_traced_steps(
        self, slowest_s: float, first_step_at: float
    ) -> dict[str, float | None] | None:
        """Run a few more full steps under the profiler; seconds of one by what they were spent on.

        None where the time limit is near, since a measured point must not end as a timeout; the
        ranks decide together because a step needs all of them. None too where the trace is
        incomplete.

        Args:
            slowest_s: of this rank's measured steps.
            first_step_at: when the first step of all began, in seconds since the epoch.
        """
        point = self.point
        needed = time.time() - first_step_at + _TRACED_MARGIN * slowest_s
        if max(self._slowest([needed])) > point.time_limit_s - _STARTUP_MARGIN_S:
            return None
        on_gpu = self.device.type == "cuda"
        feed = self._feed([self._full_count] * (trace.DISCARDED + trace.STEPS))
        keep = self.files.trace(self.rank) if point.keep_trace else None
        with trace.profiler_window(point.layout, self.device, keep=keep) as events:
            for index in range(trace.DISCARDED + trace.STEPS):
                self.beat(f"traced step {self.steps_done}")
                batches = feed(self.steps_done)
                self.steps_done += 1
                # Also for the profilers: each starts in a time of its own, which would count as
                # communication.
                self._align()
                with trace.annotated_step(index):
                    self.trainer.step(batches)
                    if on_gpu:
                        torch.cuda.synchronize()
        reason = unusable_reason(events, on_gpu=on_gpu)
        if reason is not None:
            _log.warning("a step is not split: %s", reason)
            return None
        return split_step_time(events)

    def _align(self) -> None:
        """Let all ranks start together. NCCL would guess the device of its first collective."""
        on_gpu = self.device.type == "cuda"
        dist.barrier(device_ids=[self.device.index] if on_gpu else None)

    @property
    def _full_count(self) -> int:
        """Micro-batches of a full step."""
        return self.point.layout.gradient_accumulation_steps

    def _run(
        self,
        counts: Sequence[int],
        *,
        warmup_steps: int,
        is_enough: Callable[[list[float]], bool],
        power: PowerLog | None = None,
    ) -> list[float]:
        """Run a series of steps; seconds of each measured one.

        Drawing the data and reading the loss are no part of a step, as a data loader hides them.

        Args:
            counts: micro-batches of each step, warm-up included.
            warmup_steps: steps before the first measured one.
            is_enough: told the seconds so far after each measured step; True ends the series.
            power: read from the first measured step on.
        """
        first, feed = self.steps_done, self._feed(counts)
        first_measured = first + warmup_steps
        times: list[float] = []
        graphs_before = skipped_before = 0
        trouble_before: dict[str, int] = {}
        processors: Processors | None = None
        for step in range(first, first + len(counts)):
            self.beat(f"step {step} of {first + len(counts)}")
            batches = feed(step)
            if step == first_measured:
                graphs_before = graphs_compiled() if self.point.layout.compile else 0
                skipped_before = self.trainer.skipped_steps
                trouble_before = allocator_trouble(self.device)
                processors = Processors.read()
                if power is not None:
                    power.start()
            self._align()  # no step includes another rank's drawing
            seconds = self.stopwatch.seconds_of(functools.partial(self.trainer.step, batches))
            self.steps_done += 1
            self.losses.append(self.trainer.loss())
            self.grad_norms.append(self.trainer.grad_norm())
            require_finite(self.point, self.losses, self.grad_norms[-1])
            if step >= first_measured:
                times.append(seconds)
                if is_enough(times):
                    break
        for name, count in allocator_trouble(self.device).items():
            self.trouble[name] = self.trouble.get(name, 0) + count - trouble_before[name]
        self._note_processors(since=processors)
        if self.point.layout.compile and graphs_compiled() > graphs_before:
            raise RuntimeError(
                f"{graphs_compiled() - graphs_before} graphs were compiled within the measured "
                f"steps: warmup_steps={self.point.warmup_steps} is not enough"
            )
        if skipped := self.trainer.skipped_steps - skipped_before:
            raise RuntimeError(
                f"{skipped} of the measured steps updated no weights, as gradients overflowed "
                f"precision={self.point.layout.precision}: warmup_steps={self.point.warmup_steps} "
                "is not enough for the loss scale to settle"
            )
        return times

    def _note_processors(self, since: Processors | None) -> None:
        """Keep the use of processors in a series of measured steps if none was longer."""
        if since is None:
            return
        on_gpu = self.device.type == "cuda"  # where one thread queues the work
        use = since.until_now(1 if on_gpu else torch.get_num_threads())
        if self.processors is None or use["seconds"] > self.processors["seconds"]:
            self.processors = use

    def _feed(self, counts: Sequence[int]) -> Feed:
        """The batches of the next steps, which have so many micro-batches."""
        return Feed(
            self.point, self.groups.place, counts, first=self.steps_done, device=self.device
        )

    def _slowest(self, times: list[float]) -> list[float]:
        """The slowest rank's seconds of each step; collective over all ranks."""
        slowest = torch.tensor(times, dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return [float(seconds) for seconds in slowest.tolist()]

    def _rank_0_decides(self, value: int) -> int:
        """Rank 0's value on every rank: hosts may round differently, and all must go on or none."""
        decision = torch.tensor([int(value)], device=self.device)
        dist.broadcast(decision, src=0)
        return int(decision.item())
