"""The result of a calibration, parameters and errors per stack, and its JSON file."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling import __version__
from scaling.errors import InputError
from scaling.predict.read.features import Group
from scaling.predict.read.parameters import PARAMETERS, STALL_ODDS
from scaling.predict.read.residual import NAMES, Residual
from scaling.record.files import write_text
from scaling.study.plan_file import read_json_object

SCHEMA = "scaling.calibration"

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
            "scaling_version": __version__,
            "source": self.source,
            "failure": self.failure,
            "rows_until": self.rows_until,
            "errors_are": "standard deviations of parts of log(measured / predicted)",
            "stacks": stacks,
        }
        record["digest"] = _digest(record)
        return json.dumps(record, indent=1, allow_nan=False) + "\n"


# Parameters of a cluster's links, memory and nodes, which do not carry over to another cluster.
_OF_THE_CLUSTER = {
    "link_efficiency", "network_efficiency", "host_transport_s", "host_update", "buffers_bytes",
    "fragmentation",
}  # fmt: skip


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
        InputError: it is missing, no calibration, of another version, or was changed.
    """
    record = read_json_object(path)
    if record.get("schema") != SCHEMA:
        problem = "this is no calibration file" if path.exists() else "no such file"
        raise InputError(f"{path}: {problem}; `scaling calibrate ROWS FILE` writes one")
    if record.pop("digest", None) != _digest(record):
        raise InputError(
            f"{path}: is not as `scaling calibrate` of this version wrote it; calibrate again"
        )
    from pydantic import TypeAdapter

    return TypeAdapter(Calibration).validate_python(record)


def _digest(record: Mapping[str, Any]) -> str:
    """A digest of what a file says and of the names that this program reads."""
    known = [*PARAMETERS, *STALL_ODDS, *PARTS, *RANGES, *NAMES]
    text = json.dumps([record, known], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
