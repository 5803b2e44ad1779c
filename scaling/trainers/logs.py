"""Read the log of a program by its entry: steps, seconds, losses, memory and layout."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from scaling.trainers.entries import Failure, Reads, Trainer

LONGEST_LINE = 8192  # characters of a line that are looked at
MOST_STEPS = 100_000
_WRAPPED = 12  # lines at most that one line of a step was wrapped into
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LABEL = re.compile(r"^\s*(?:\[[\w.-]*rank\d+\]:|\[rank\d+\]:|\d{1,6}: ?)\s?")
_NUMBER = re.compile(r"^[+-]?[0-9][0-9,]{0,20}(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,3})?([KMBT]?)$")
# what a pattern may leave of a number: its decimals, its exponent
_GOES_ON = re.compile(r"(?:\.[0-9]+)?[eE][+-]?[0-9]+|\.[0-9]+")
_SHORTEST_S, _LONGEST_S = 1e-6, 1e6  # a step
_SUFFIX = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_BYTES = {"peak_gib": 2**30, "peak_mib": 2**20, "peak_gb": 10**9}


@dataclass(slots=True)
class Step:
    """One training step as a log tells it; None for what it does not say."""

    number: int | None
    values: dict[str, float]
    stamp: float | None = None  # when its line was seen
    steady: bool = True

    def seconds(
        self, tokens: float | None, samples: float | None, gpus: int | None
    ) -> float | None:
        """Its seconds, from what the line says; rates need the step's tokens or samples."""
        said = self.values
        if "seconds" in said or "ms" in said:
            return said.get("seconds", said.get("ms", 0.0) / 1e3)
        for rate, amount, devices in (
            ("tokens_per_s_per_gpu", tokens, gpus),
            ("tokens_per_s_all", tokens, 1),
            ("samples_per_s_all", samples, 1),
        ):
            if said.get(rate) and amount and devices:
                return amount / (said[rate] * devices)
        return None


@dataclass(slots=True)
class LogReader:
    """The content of a log so far; lines are fed as they come."""

    trainer: Trainer
    steps: list[Step] = field(default_factory=list)
    peak_bytes: int | None = None
    _reads: Reads = field(init=False)  # of the release that wrote the log
    _heads: dict[int, dict[str, str]] = field(default_factory=dict)  # by the identity of a release
    _by_number: dict[int, Step] = field(default_factory=dict)
    _steady: bool = True
    _open: list[str] = field(default_factory=list)  # parts of a step's line, wrapped by a terminal

    def __post_init__(self) -> None:
        self._reads = self.trainer.reads

    @property
    def head(self) -> dict[str, str]:
        """The layout and the sizes that the log has told so far."""
        return self._heads.setdefault(id(self._reads), {})

    def feed(self, line: str, stamp: float | None = None) -> None:
        """Take one line."""
        text = _LABEL.sub("", _ANSI.sub("", line[:LONGEST_LINE]).rstrip("\r\n"))
        text = text.rpartition("\r")[2]
        if not self.steps and not self._open and not re.search(self._reads.step, text):
            found = (one for one in self.trainer.formats if re.search(one.step, text))
            self._reads = next(found, self._reads)
        step, ends = self._reads.step, self._reads.ends
        if ends and (self._open or re.search(step, text)):
            self._open.append(text)
            text = "".join(self._open)[:LONGEST_LINE]
            if not re.search(ends, text) and len(self._open) < _WRAPPED:
                return
            self._open = []
        self._take(text, stamp)

    def close(self) -> None:
        """Take what an unfinished line has said."""
        if self._open:
            self._take("".join(self._open)[:LONGEST_LINE], None)
            self._open = []

    def _take(self, text: str, stamp: float | None) -> None:
        reads = self._reads
        for one in (reads,) if self.steps else self.trainer.formats:
            head = self._heads.setdefault(id(one), {})
            for name, pattern in one.head.items():
                if name not in head and (told := re.search(pattern, text)):
                    head[name] = told[1].strip()
        for name, pattern in reads.anywhere.items():
            for peak in re.finditer(pattern, text):
                self._note_peak(name, _whole_number(text, peak))
        # the next step's window holds what such a line is about
        if any(one and re.search(one, text) for one in (reads.unlike, reads.unsteady)):
            self._steady = False
            return
        if re.search(reads.step, text) is None or len(self.steps) >= MOST_STEPS:
            return
        said = {
            name: _whole_number(text, found)
            for name, pattern in reads.fields.items()
            if (found := re.search(pattern, text))
        }
        values = {str(name): value for name, value in said.items() if value is not None}
        for name, value in values.items():
            self._note_peak(name, value)
        steady, self._steady = self._steady and not values.get("skipped"), True
        number = None if (stated := values.pop("step", None)) is None else int(stated)
        if number is None and self._by_number:  # another line of a step that has its own
            return
        known = None if number is None else self._by_number.get(number)
        if known is not None:  # several ranks may print one step, and only some know its loss
            if known.values.get("loss", -1.0) < 0:
                known.values |= values
            return
        self.steps.append(Step(number, values, stamp, steady))
        if number is not None:
            self._by_number[number] = self.steps[-1]

    def _note_peak(self, name: str, value: float | None) -> None:
        if name in _BYTES and value is not None and 0 <= value < 1e9:
            self.peak_bytes = max(self.peak_bytes or 0, round(value * _BYTES[name]))


def read_log(trainer: Trainer, lines: Iterable[str]) -> LogReader:
    """The content of a whole log."""
    reader = LogReader(trainer)
    for line in lines:
        reader.feed(line)
    reader.close()
    return reader


def _whole_number(text: str, found: re.Match[str]) -> float | None:
    """The number that a pattern has found in a line, to its last digit."""
    more = _GOES_ON.match(text, found.end(1))
    return number_of(found[1] + (more[0] if more else ""))


def number_of(text: str) -> float | None:
    """The number in a text, with thousands separators or K, M, B, T; NaN for nan, None for none."""
    text = text.strip().strip("'\"")
    if text.lower() in ("nan", "inf", "-inf"):
        return float("nan")
    found = _NUMBER.match(text[:64])
    return (
        None if found is None else float(text.rstrip("KMBT").replace(",", "")) * _SUFFIX[found[1]]
    )


def steady_seconds(
    reader: LogReader,
    *,
    warmup: int,
    tokens: float | None = None,
    samples: float | None = None,
    gpus: int | None = None,
) -> tuple[list[float], bool]:
    """Seconds of the ordinary steps after the first ones, and whether the log itself states them.

    Without a time in the log a step lasts from the line before it to its own.
    """
    stated, stamped = [], []
    before: float | None = None
    for place, step in enumerate(reader.steps):
        seconds = step.seconds(tokens, samples, gpus)
        if place >= warmup and step.steady:
            if seconds is not None and _SHORTEST_S < seconds < _LONGEST_S:
                stated.append(seconds)
            elif seconds is None and before is not None and step.stamp is not None:
                stamped.append(step.stamp - before)
        before = step.stamp
    return (stated, True) if stated else (stamped, False)


def failure_of(trainer: Trainer, text: str) -> tuple[Failure, str | None] | None:
    """The outcome that a text of a failed rank means, and the last line with it."""
    lines = text.splitlines()[::-1]  # an exception stands below the code that raised it
    for outcome, patterns in trainer.fails.items():
        for pattern in patterns:
            for line in lines:
                if re.search(pattern, line[:LONGEST_LINE]):
                    return outcome, line.strip()[:500]
    return None
