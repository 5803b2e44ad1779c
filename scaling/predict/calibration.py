"""What calibration leaves: parameters and error bands per stack, in a versioned JSON file."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling import __version__
from scaling.errors import InputError
from scaling.predict.features import Group
from scaling.predict.parameters import PARAMETERS
from scaling.store import write_text

SCHEMA = "scaling.calibration"
VERSION = 1

AXES = ("world_size", "seq_length", "model", "hidden_size")

# Without calibration the data sheet is off by 4 to 20 % on published tables; steps slower than
# predicted are commoner than faster ones. Quantiles of log(measured / predicted).
DATA_SHEET_BAND = (-0.16, 0.26)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One parameter after calibration; `low` and `high` bound 95 % of its posterior."""

    value: float
    low: float
    high: float
    identified: bool
    reason: str  # why it is not identified, empty if it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """10 % and 90 % quantile of log(measured / predicted) on rows held back from the fit."""

    low: float
    high: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackCalibration:
    """One stack: software on a cluster.

    `bands` holds "interpolation" (random folds) and, where the rows allow it, one band per axis of
    AXES from folds that leave a whole value of that axis out. `seen` are the axis values of the
    calibration rows.
    """

    framework: str
    cluster: str
    rows_timed: int
    rows_out_of_memory: int
    rows_with_peak_memory: int
    parameters: Mapping[str, Fitted]
    bands: Mapping[str, Band]
    seen: Mapping[str, tuple[float | str, ...]]

    @property
    def values(self) -> dict[str, float]:
        """The parameters' values alone."""
        return {name: fitted.value for name, fitted in self.parameters.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Every calibrated stack, by framework|cluster."""

    source: str
    stacks: Mapping[str, StackCalibration]

    def parameters_for(self, group: Group) -> tuple[dict[str, float], StackCalibration | None, str]:
        """Parameters for a group, the calibration behind them, and where they are from.

        Its own stack first; then the only stack of its cluster if the group names no software; then
        the same software on another cluster, whose efficiencies carry over as ratios of what the
        data sheet says of the new one, but not what its links and allocator did.
        """
        own = self.stacks.get(group.key)
        if own is not None:
            return own.values, own, group.key
        here = [key for key, s in self.stacks.items() if s.cluster == group.cluster_name]
        if group.unnamed_software and len(here) == 1:
            return self.stacks[here[0]].values, self.stacks[here[0]], here[0]
        kin = [key for key, s in self.stacks.items() if s.framework == group.framework]
        if kin:
            best = max(kin, key=lambda key: self.stacks[key].rows_timed)
            carried = {n: v for n, v in self.stacks[best].values.items() if n not in OF_THE_CLUSTER}
            return {**group.start, **carried}, None, f"{best} (other cluster)"
        return dict(group.start), None, "data sheet"

    def to_json(self) -> str:
        """The text of calibration.json: what each number means stands beside it."""
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


# Not carried to another cluster: they describe its links, its memory and its nodes.
OF_THE_CLUSTER = frozenset(
    {
        "link_efficiency", "tp_network_efficiency", "tp_network_latency_s", "network_efficiency",
        "p2p_efficiency", "p2p_latency_s", "host_transport_s", "node_jitter", "stall_s",
        "stall_knee", "buffers_bytes", "fragmentation",
    }
)  # fmt: skip


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write calibration.json whole or not at all."""
    write_text(path, calibration.to_json())


def read_calibration(path: Path) -> Calibration:
    """The calibration a file holds.

    Raises:
        InputError: it is missing, no calibration, of another version, or a value is out of bounds.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; write one with `scaling calibrate ROWS {path}`")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise InputError(f"{path}: schema is not {SCHEMA!r}; this is no calibration file")
    if record.get("version") != VERSION:
        raise InputError(
            f"{path}: version={record.get('version')!r}, this program reads {VERSION}; "
            "calibrate again"
        )
    try:
        stacks = {key: _stack_of(stack, path, key) for key, stack in record["stacks"].items()}
        return Calibration(source=str(record["source"]), stacks=stacks)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: incomplete calibration, at {error}; calibrate again") from error


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


def _stack_of(record: Mapping[str, Any], path: Path, key: str) -> StackCalibration:
    names = [field.name for field in dataclasses.fields(Fitted)]
    parameters = {}
    for name, known in PARAMETERS.items():
        fitted = Fitted(**{field: record["parameters"][name][field] for field in names})
        ok = isinstance(fitted.value, int | float) and math.isfinite(fitted.value)
        if not ok or not known.low * 0.999 <= fitted.value <= known.high * 1.001:
            raise InputError(
                f"{path}: {key}: {name}={fitted.value!r} is outside {known.low:g} to {known.high:g}"
            )
        parameters[name] = fitted
    counts = ("rows_timed", "rows_out_of_memory", "rows_with_peak_memory")
    return StackCalibration(
        framework=record["framework"],
        cluster=record["cluster"],
        **{name: int(record[name]) for name in counts},
        parameters=parameters,
        bands={name: Band(**band) for name, band in record["bands"].items()},
        seen={name: tuple(values) for name, values in record["seen"].items()},
    )
