"""The steps of a point: full ones, short ones, and when either have been enough."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from scaling.record.extension import Extension, estimate_full_step
from scaling.record.interval import StepsVerdict, is_check_due, judge_steps
from scaling.record.rank_files import RankFiles
from scaling.record.row import Stopped
from scaling.study.point import Point
from scaling.study.short_steps import short_step_rounds, short_step_sizes, shuffled_rounds
from scaling.train.data import Feed, MicroBatch, micro_batches
from scaling.train.engines.trainer import Trainer
from scaling.train.kernels.compiled import graphs_compiled
from scaling.train.measure.power import NOTHING_DRAWN, Drawn, PowerLog
from scaling.train.measure.timing import Stopwatch, step_times_s
from scaling.train.model.blueprint import Blueprint
from scaling.train.outcomes import require_finite
from scaling.train.parallel.groups import Groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Full steps of this rank. Seconds; the warm-up is counted and left out.

    metered_steps: that `drawn` is of: those that were dropped as warm-up afterwards are among them.
    """

    times_s: list[float] = field(default_factory=list)
    warmup_steps: int | None = None
    stopped: Stopped | None = None
    metered_steps: int | None = None
    drawn: Drawn = NOTHING_DRAWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortSteps:
    """Short steps of this rank, seconds and micro-batches, and what all ranks make of theirs."""

    times_s: list[float]
    accumulations: list[int]
    extension: Extension | None
    stopped: Stopped


@dataclass(slots=True)
class Stepping:
    """Runs a rank's steps, one stretch after another; all ranks run the same ones.

    `done` counts steps of any kind: data are drawn by it.
    """

    point: Point
    trainer: Trainer
    plan: Blueprint
    groups: Groups
    files: RankFiles
    rank: int
    stopwatch: Stopwatch
    done: int = 0
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float | None] = field(default_factory=list)

    def full(self, power: PowerLog | None) -> Timed:
        """Full steps: as many as the study asks for, or until their median is precise enough."""
        point, first = self.point, self.done
        at_least = point.at_least_steps or point.measured_steps
        most = point.warmup_steps + point.measured_steps
        begin = first + point.warmup_steps
        feed = self._feed(lambda _: self._whole, range(begin, begin + at_least))
        slowest: list[float] = []

        def enough(times: list[float]) -> bool:
            if point.until is None or len(times) <= point.warmup_steps:
                return False
            slowest.append(self.slowest([times[-1]])[0])
            if not is_check_due(len(slowest), at_least):
                return False
            return bool(self._as_first_rank(int(judge().enough)))

        def judge() -> StepsVerdict:
            assert point.until is not None
            return judge_steps(slowest, at_least=at_least, until=point.until)

        times = self._timed(feed, most, begin, enough, power)
        counted = times[point.warmup_steps :]
        drawn = NOTHING_DRAWN if power is None else power.stop()
        stopped: Stopped = "asked"
        dropped = 0
        if point.until is not None:
            verdict = judge()
            dropped = self._as_first_rank(verdict.dropped)
            stopped = "precise" if verdict.enough else "at_most"
            stopped = stopped if verdict.steady else "not_steady"
        return Timed(
            times_s=counted[dropped:],
            warmup_steps=point.warmup_steps + dropped,
            stopped=stopped,
            metered_steps=len(counted),
            drawn=drawn,
        )

    def short(self, *, warmup_steps: int) -> ShortSteps:
        """Rounds of short steps in random turns: drift must not look like a slope.

        Args:
            warmup_steps: of the smallest accumulation, before the first round.
        """
        point, first = self.point, self.done
        counts = short_step_sizes(point.layout)
        begin = first + warmup_steps
        at_least = short_step_rounds(point.at_least_steps or point.measured_steps)
        turns = shuffled_rounds(counts, short_step_rounds(point.measured_steps), point.seed)

        def count_of(step: int) -> int:
            return turns[step - begin] if step >= begin else counts[0]

        def of_all(times: list[float]) -> Extension | None:
            whole = point.layout.gradient_accumulation_steps
            return estimate_full_step(turns[: len(times)], self.slowest(times), whole)

        def enough(times: list[float]) -> bool:
            counted = times[warmup_steps:]
            done, rest = divmod(len(counted), len(counts))
            if point.until is None or rest or not is_check_due(done, at_least):
                return False
            return self._is_precise(of_all(counted))

        feed = self._feed(count_of, range(begin, begin + at_least * len(counts)))
        times = self._timed(feed, warmup_steps + len(turns), begin, enough)
        counted = times[warmup_steps:]
        extension = of_all(counted)
        stopped: Stopped = "asked"
        if point.until is not None:
            stopped = "precise" if self._is_precise(extension) else "at_most"
        return ShortSteps(
            times_s=counted,
            accumulations=turns[: len(counted)],
            extension=extension,
            stopped=stopped,
        )

    def _is_precise(self, extension: Extension | None) -> bool:
        until = self.point.until
        precise = extension is not None and until is not None and extension.half_width <= until
        return bool(self._as_first_rank(int(precise)))

    def is_linear(self, short: ShortSteps) -> bool:
        """Whether the accumulations lie on a line, as the first rank says for all."""
        linear = short.extension is not None and short.extension.linear
        return bool(self._as_first_rank(int(linear)))

    def another(self) -> list[MicroBatch]:
        """The batches of one full step more, which somebody else runs."""
        batches = self._feed(lambda _: self._whole, range(0))(self.done)
        self.files.beat(self.rank, f"traced step {self.done}")
        self.done += 1
        return batches

    @property
    def _whole(self) -> int:
        return self.point.layout.gradient_accumulation_steps

    def _feed(self, count_of: Callable[[int], int], counted: range) -> Feed:
        point, place = self.point, self.groups.place

        def draw(step: int) -> list[MicroBatch]:
            return micro_batches(
                point.layout,
                vocab_size=point.shape.vocab_size,
                seed=point.seed,
                step=step,
                dp_rank=place.dp_rank,
                cp_rank=place.cp_rank,
                device=torch.device("cpu"),
                pairs=point.shape.family == "t5",
                count=count_of(step),
            )

        return Feed(draw, counted=counted, device=self.plan.device)

    def _timed(
        self,
        feed: Feed,
        most: int,
        begin: int,
        enough: Callable[[list[float]], bool],
        power: PowerLog | None = None,
    ) -> list[float]:
        """Times of at most so many steps; those before `begin` are warm-up."""
        compiled = 0  # graphs, before the first step that counts
        last = self.done + most

        def prepare(step: int) -> list[MicroBatch]:
            nonlocal compiled
            self.files.beat(self.rank, f"step {step} of {last}")
            batches = feed(step)
            if step == begin:
                compiled = graphs_compiled() if self.point.layout.compile else 0
                if power is not None:
                    power.start()
            return batches

        def after(_: int) -> None:
            self.done += 1
            self.losses.append(self.trainer.loss())
            self.grad_norms.append(self.trainer.grad_norm())
            require_finite(self.point, self.losses, self.grad_norms[-1])

        times = step_times_s(
            first=self.done,
            steps=most,
            prepare=prepare,
            align=dist.barrier,
            step=self.trainer.step,
            after=after,
            stopwatch=self.stopwatch,
            enough=enough,
        )
        if self.point.layout.compile and graphs_compiled() > compiled:
            raise RuntimeError(
                f"{graphs_compiled() - compiled} graphs were compiled within the measured steps: "
                f"warmup_steps={self.point.warmup_steps} is not enough"
            )
        return times

    def slowest(self, times: list[float]) -> list[float]:
        """Of each step the slowest rank's seconds; collective."""
        slowest = torch.tensor(times, dtype=torch.float64, device=self.plan.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return [float(each) for each in slowest.tolist()]

    def _as_first_rank(self, number: int) -> int:
        """What rank 0 says: hosts may round differently, and all must go on or none; collective."""
        word = torch.tensor([number], device=self.plan.device)
        dist.broadcast(word, src=0)
        return int(word.item())
