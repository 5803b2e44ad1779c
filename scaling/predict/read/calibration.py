"""The result of a calibration, parameters and errors per stack, and its versioned JSON file."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling import __version__
from scaling.errors import InputError, shortened
from scaling.predict.read.features import Group
from scaling.predict.read.parameters import PARAMETERS
from scaling.predict.read.residual import Residual
from scaling.record.files import write_text

SCHEMA = "scaling.calibration"
VERSION = 1

# Largest values accepted from a file: ends of a feature range, and log errors (a factor of e^20).
_LARGEST_RANGE_END = 1e3
_LARGEST_LOG = 20.0

AXES = ("world_size", "seq_length", "model", "hidden_size")
# 80 % of normal errors lie within this many standard deviations.
Z_80 = 1.2816
# Reason given when no calibration row's step time or memory depends on the parameter.
NO_ROW_DEPENDS = "no row depends on it"

# 10 % and 90 % quantiles of ln(measured / predicted) without calibration. On published tables data
# sheets are off by 4 to 20 %, and more steps are slower than predicted than faster.
DATA_SHEET_BAND = (-0.16, 0.26)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One parameter after calibration; `low` and `high` bound 95 % of its posterior."""

    value: float
    low: float
    high: float
    identified: bool
    reason: str  # why it is not identified, empty if it is
    start: float | None = None  # value before the fit, from a data sheet or a probe
    cautious: float | None = None  # value for layouts unlike the rows (fitting.py: fit_cautiously)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Errors of rows held back from the fit: ln(measured / predicted).

    `low`, `high`: 10 % and 90 % quantile. `own`, `shared`: standard deviations of a layout's own
    error and of the error shared by rows of one size (cost/interval.py); None in older files, which
    did not separate them.
    """

    low: float
    high: float
    rows: int
    own: float | None = None
    shared: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StackCalibration:
    """One calibrated stack: a framework on a cluster.

    generation: of the GPU.
    bands: errors by key: "interpolation" from random folds, and, where rows suffice, an axis of
        AXES or "layout" from folds that leave out a whole value of it.
    seen: values of each of AXES in the calibration rows, and (least, largest) of each feature in
        `layout_ranges` (cost/interval.py).
    trust: trust in the fit for rows that are new in an axis of AXES, in "layout", or in anything
        that no fold tested ("untested"); see trust.py.
    sheet_error: root mean square of ln(measured / predicted from data sheets), stalled rows
        clipped; None if it was not computed, and in older files.
    residual: correction learned from nearby rows; None if it does not improve held-back rows, and
        in older files.
    outcomes: probit of which memory needs fit, log scale (cost/memory_odds.py); empty with too few
        rows that ran or too few that did not.
    """

    framework: str
    cluster: str
    generation: str | None = None
    rows_timed: int
    rows_out_of_memory: int
    rows_with_peak_memory: int
    parameters: Mapping[str, Fitted]
    bands: Mapping[str, Band]
    seen: Mapping[str, tuple[float | str, ...]]
    trust: Mapping[str, float] = field(default_factory=dict)
    sheet_error: float | None = None
    residual: Residual | None = None
    outcomes: Mapping[str, float] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, float]:
        """The parameters' values alone."""
        return {name: fitted.value for name, fitted in self.parameters.items()}

    @property
    def cautious(self) -> dict[str, float]:
        """Values for layouts unlike the rows, of the parameters for which the file has one."""
        stated = {name: fitted.cautious for name, fitted in self.parameters.items()}
        return {name: value for name, value in stated.items() if value is not None}

    @property
    def starts(self) -> dict[str, float]:
        """Values before the fit, of the parameters for which the file has one."""
        stated = {name: fitted.start for name, fitted in self.parameters.items()}
        return {name: value for name, value in stated.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Every calibrated stack, by framework|cluster."""

    source: str
    stacks: Mapping[str, StackCalibration]

    def parameters_for(self, group: Group) -> tuple[dict[str, float], StackCalibration | None, str]:
        """Parameters for a group, the calibration they come from, and the name of that source.

        In order of preference: the group's own stack; the only stack of its cluster, if the group
        names no software; the same software on another cluster with GPUs of the same generation.
        In the last case efficiencies carry over as ratios to the data sheet, but the parameters of
        links, memory and nodes do not. Nothing carries over between generations, whose kernels and
        overlap differ. Otherwise the data sheet.
        """
        if (own := self.stacks.get(group.key)) is not None:
            return own.values, own, group.key
        same_cluster = [key for key, s in self.stacks.items() if s.cluster == group.cluster_name]
        if group.has_unnamed_software and len(same_cluster) == 1:
            (key,) = same_cluster
            return self.stacks[key].values, self.stacks[key], key
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
            "bands_are": "10 % and 90 % quantiles of log(measured / predicted), rows held back",
            "stacks": stacks,
        }
        return json.dumps(record, indent=1, allow_nan=False) + "\n"


# Parameters of a cluster's links, memory and nodes, which do not carry over to another cluster.
_OF_THE_CLUSTER = frozenset(
    {
        "link_efficiency", "tp_network_latency_s", "network_efficiency", "p2p_efficiency",
        "p2p_latency_s", "p2p_efficiency_inside", "p2p_latency_inside_s", "host_transport_s",
        "stall_s", "buffers_bytes", "fragmentation",
    }
)  # fmt: skip


def _without_cluster(stack: StackCalibration, start: Mapping[str, float]) -> StackCalibration:
    """The stack on another cluster, whose own parameters stay at their `start`."""
    parameters = {
        name: dataclasses.replace(
            fitted, value=start[name], start=start[name], cautious=start[name]
        )
        if name in _OF_THE_CLUSTER
        else fitted
        for name, fitted in stack.parameters.items()
    }
    return dataclasses.replace(stack, parameters=parameters)


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
    """The record as dataclasses, once its types and the bounds of its numbers are checked."""
    from pydantic import TypeAdapter, ValidationError

    try:
        calibration = TypeAdapter(Calibration).validate_python(record)
    except ValidationError as error:
        first = error.errors()[0]
        where = shortened(".".join(str(part) for part in first["loc"]), 200)
        raise InputError(f"{path}: {where}: {first['msg']}; calibrate again") from error
    for key, stack in calibration.stacks.items():
        for flaw in _flaws(stack):
            raise InputError(f"{path}: {shortened(key)}: {flaw}")
    return calibration


def _flaws(stack: StackCalibration) -> Iterator[str]:
    """Sentences on what makes a stack unusable, none if it is sound."""
    missing = PARAMETERS.keys() - stack.parameters.keys()
    missing |= {"interpolation"} - stack.bands.keys()
    missing |= set(AXES) - stack.seen.keys()
    if missing:
        yield f"{min(missing)} is missing; calibrate again"
    if stack.residual is not None and not stack.residual.is_sound:
        yield "residual is none that fits this program; calibrate again"
    if stack.outcomes and not _is_sound(stack.outcomes):
        yield "outcomes has no finite offset, or no sigma above 0"
    for name, values in stack.seen.items():
        ends = [v for v in values if isinstance(v, float) and abs(v) < _LARGEST_RANGE_END]
        if name not in AXES and not len(ends) == len(values) == 2:
            yield f"seen.{shortened(name)} is no range of two numbers"
    for name, fitted in stack.parameters.items():
        known = PARAMETERS.get(name)
        if known and not known.low * 0.999 <= fitted.value <= known.high * 1.001:
            yield f"{name}={fitted.value!r} is outside {known.low:g} to {known.high:g}"
    sigmas = {"sheet_error": stack.sheet_error}
    for name, band in stack.bands.items():
        place = f"bands.{shortened(name)}"
        if not -_LARGEST_LOG <= band.low <= band.high <= _LARGEST_LOG:
            yield f"{place} is no band: {band.low}, {band.high}"
        sigmas |= {f"{place}.own": band.own, f"{place}.shared": band.shared}
    for place, sigma in sigmas.items():
        if sigma is not None and not 0 <= sigma <= _LARGEST_LOG:
            yield f"{place}={sigma} is no standard deviation"


def _is_sound(outcomes: Mapping[str, float]) -> bool:
    return (
        {"sigma", "offset"} <= outcomes.keys()
        and outcomes["sigma"] > 1e-3
        and all(abs(value) < _LARGEST_LOG for value in outcomes.values())
    )


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
