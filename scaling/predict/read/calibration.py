"""The result of a calibration, parameters and errors per stack, and its versioned JSON file."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling import __version__
from scaling.errors import InputError, did_you_mean, shortened
from scaling.predict.read.features import Group
from scaling.predict.read.parameters import PARAMETERS, STALL_ODDS, Parameter
from scaling.predict.read.residual import Residual
from scaling.record.files import write_text
from scaling.study.problems import first_problem

SCHEMA = "scaling.calibration"
VERSION = 2

_LARGEST_RANGE_END = 1e12  # accepted from a file
_LARGEST_SIGMA = 20.0  # accepted from a file, a factor of e^20

# Parts of the error of ln(step time): shared by all layouts and sizes of a model, software and
# cluster; of a layout at all sizes; of a size for all layouts; the rest.
PARTS = ("common", "layout", "size", "rest")
# Axes beyond whose calibrated range a fit is followed half the way; world_size widens intervals.
HALVED = ("seq_length", "hidden_size")
RANGES = (*HALVED, "world_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One parameter after calibration; `low` and `high` bound 95 % of its posterior."""

    value: float
    low: float
    high: float
    identified: bool
    reason: str  # why it is not identified, empty if it is
    start: float  # value before the fit, from a data sheet or a probe


@dataclass(frozen=True, slots=True, kw_only=True)
class StackCalibration:
    """One calibrated stack: a framework on a cluster.

    generation: of the GPU.
    ranges: least and largest value of each of RANGES in the timed rows; empty without any.
    errors: standard deviation of each of PARTS, for layouts like the calibrated ones.
    residual: correction learned from the timed rows.
    stalls: probabilities of stalls over a lossy transport, by name (cost/risk.py); else empty.
    """

    framework: str
    cluster: str
    generation: str | None = None
    rows_timed: int
    rows_out_of_memory: int
    rows_with_peak_memory: int
    parameters: Mapping[str, Fitted]
    ranges: Mapping[str, tuple[float, float]]
    errors: Mapping[str, float]
    residual: Residual
    stalls: Mapping[str, float] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, float]:
        """The parameters' values alone."""
        return {name: fitted.value for name, fitted in self.parameters.items()} | dict(self.stalls)

    @property
    def starts(self) -> dict[str, float]:
        """Their values before the fit."""
        return {name: fitted.start for name, fitted in self.parameters.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Every calibrated stack, by framework|cluster; `failure`: why a study's fit has none.

    `rows_until`: when the newest of its rows was measured, ISO 8601; None if no row says it.
    """

    source: str
    stacks: Mapping[str, StackCalibration]
    failure: str = ""
    rows_until: str | None = None

    def parameters_for(self, group: Group) -> tuple[dict[str, float], StackCalibration | None, str]:
        """Parameters for a group, the calibration they come from, and the name of that source.

        In order of preference: the group's own stack; the only stack of its cluster, if the group
        names no software; the same software on another cluster with GPUs of the same generation.
        In the last case efficiencies carry over as ratios to the data sheet, but the parameters of
        links, memory and nodes do not. Nothing carries over between generations, whose kernels and
        overlap differ. Otherwise the data sheet.
        """
        if (own := self.stacks.get(group.key)) is not None:
            return {**group.start, **own.values}, own, group.key
        same_cluster = [key for key, s in self.stacks.items() if s.cluster == group.cluster_name]
        if group.has_unnamed_software and len(same_cluster) == 1:
            (key,) = same_cluster
            return {**group.start, **self.stacks[key].values}, self.stacks[key], key
        software = (group.framework, group.gpu.generation)
        similar = {
            key: s for key, s in self.stacks.items() if (s.framework, s.generation) == software
        }
        if not similar:
            return dict(group.start), None, "data sheet"
        key, stack = max(similar.items(), key=lambda item: item[1].rows_timed)
        carried = _without_cluster(stack, group.start)
        return {**group.start, **carried.values}, carried, f"{key} (other cluster)"

    def to_json(self) -> str:
        """The text of calibration.json, with unit and meaning beside each parameter."""
        stacks = {key: _stack_record(stack) for key, stack in self.stacks.items()}
        record = {
            "schema": SCHEMA,
            "version": VERSION,
            "scaling_version": __version__,
            "source": self.source,
            "failure": self.failure,
            "rows_until": self.rows_until,
            "errors_are": "standard deviations of parts of log(measured / predicted)",
            "stacks": stacks,
        }
        return json.dumps(record, indent=1, allow_nan=False) + "\n"


# Parameters of a cluster's links, memory and nodes, which do not carry over to another cluster.
_OF_THE_CLUSTER = frozenset(
    {"link_efficiency", "network_efficiency", "host_transport_s", "buffers_bytes", "fragmentation"}
)


def _without_cluster(stack: StackCalibration, start: Mapping[str, float]) -> StackCalibration:
    """The stack on another cluster, whose own parameters stay at their `start`."""
    parameters = {
        name: dataclasses.replace(fitted, value=start[name], start=start[name])
        if name in _OF_THE_CLUSTER
        else fitted
        for name, fitted in stack.parameters.items()
    }
    return dataclasses.replace(stack, parameters=parameters, stalls={})


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write calibration.json whole or not at all."""
    write_text(path, calibration.to_json())


def read_calibration(path: Path) -> Calibration:
    """The calibration a file holds.

    Raises:
        InputError: it is missing, no calibration, of another version, or a value is out of bounds.
    """
    try:
        is_file = path.is_file()
        record = json.loads(path.read_text(encoding="utf-8")) if is_file else None
    except (ValueError, RecursionError, OSError) as error:
        raise InputError(f"{path}: not JSON: {shortened(error, 200)}") from error
    if not is_file:
        raise InputError(f"{path}: no such file; write one with `scaling calibrate ROWS {path}`")
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise InputError(f"{path}: schema is not {SCHEMA!r}; this is no calibration file")
    if record.get("version") != VERSION:
        raise InputError(
            f"{path}: version={shortened(record.get('version'))}, this program reads "
            f"{VERSION}; calibrate again"
        )
    return _checked(path, record)


def _checked(path: Path, record: dict[str, Any]) -> Calibration:
    """The record as dataclasses, once its keys, types and the bounds of its numbers are checked."""
    from pydantic import TypeAdapter, ValidationError

    try:
        calibration = TypeAdapter(Calibration).validate_json(json.dumps(record), strict=True)
    except ValidationError as error:
        problem = first_problem(error, Calibration)
        raise InputError(f"{path}: {problem}; calibrate again") from None
    for key, stack in calibration.stacks.items():
        for flaw in _flaws(stack):
            raise InputError(f"{path}: stacks.{shortened(key)}.{flaw}")
    for flaw in _unknown_keys(record, json.loads(calibration.to_json()), ""):
        raise InputError(f"{path}: {flaw}")
    return calibration


def _flaws(stack: StackCalibration) -> Iterator[str]:
    """The problems of a stack, each as `key=value: what would be right`; none if sound."""
    needed = {
        "parameters": PARAMETERS,
        "errors": PARTS,
        "ranges": RANGES if stack.rows_timed else (),
    }
    for name, keys in needed.items():
        if missing := set(keys) - getattr(stack, name).keys():
            yield f"{name}.{min(missing)}: is missing; calibrate again"
    allowed = needed | {"ranges": RANGES, "stalls": STALL_ODDS}
    for name, keys in allowed.items():
        for key in getattr(stack, name).keys() - set(keys):
            yield f"{name}.{shortened(key)}: unknown key: {did_you_mean(key, keys)}"
    for name in ("rows_timed", "rows_out_of_memory", "rows_with_peak_memory"):
        if (rows := getattr(stack, name)) < 0:
            yield f"{name}={shortened(rows)}: must be at least 0"
    for name, (least, largest) in stack.ranges.items():
        if not 0 < least <= largest < _LARGEST_RANGE_END:
            yield (
                f"ranges.{name}=[{least:g}, {largest:g}]: must be two numbers above 0 and below "
                f"{_LARGEST_RANGE_END:g}, the smaller first"
            )
    for name, fitted in stack.parameters.items():
        yield from _flaws_of_parameter(f"parameters.{name}", fitted, PARAMETERS[name])
    for name, logit in stack.stalls.items():
        if not abs(logit) <= _LARGEST_SIGMA:
            yield f"stalls.{name}={logit:g}: must be -{_LARGEST_SIGMA:g} to {_LARGEST_SIGMA:g}"
    for part, sigma in stack.errors.items():
        if not 0 <= sigma <= _LARGEST_SIGMA:
            yield f"errors.{part}={sigma:g}: must be 0 to {_LARGEST_SIGMA:g}"
    if (flaw := stack.residual.flaw) is not None:
        yield f"residual.{flaw}; calibrate again"


def _flaws_of_parameter(name: str, fitted: Fitted, known: Parameter) -> Iterator[str]:
    for part in ("value", "start", "low", "high"):
        number = getattr(fitted, part)
        if not known.low * 0.999 <= number <= known.high * 1.001:
            yield f"{name}.{part}={number:g}: must be {known.low:g} to {known.high:g}"
    if not fitted.low <= fitted.high:
        yield f"{name}.low={fitted.low:g}: must be at most high={fitted.high:g}"


def _unknown_keys(record: object, written: object, place: str) -> Iterator[str]:
    """The keys of a record that this program does not write, as sentences."""
    if isinstance(record, dict) and isinstance(written, dict):
        for key, value in record.items():
            if key in written:
                yield from _unknown_keys(value, written[key], f"{place}{shortened(key)}.")
            else:
                hint = did_you_mean(key, written)
                yield f"{place}{shortened(key)}={shortened(value)}: unknown key: {hint}"


def _stack_record(stack: StackCalibration) -> dict[str, Any]:
    record = dataclasses.asdict(stack)
    record["parameters"] = {
        name: {
            **dataclasses.asdict(fitted),
            "default": PARAMETERS[name].default,
            "bounds": [PARAMETERS[name].low, PARAMETERS[name].high],
            "unit": PARAMETERS[name].unit,
            "meaning": PARAMETERS[name].meaning,
        }
        for name, fitted in stack.parameters.items()
    }
    return record
