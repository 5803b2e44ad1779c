"""What calibration leaves: parameters and error bands per stack, in a versioned JSON file."""

import dataclasses
import json
from collections.abc import Mapping
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

_WIDEST_RANGE = 1e3  # of doublings and switches
_WIDEST = 20.0  # of a band, in logarithms: a factor of half a billion

AXES = ("world_size", "seq_length", "model", "hidden_size")
# 80 % of a normal error lie within this many standard deviations.
EIGHTY = 1.2816
# Why a parameter was not fitted: of no row would the step be another with another value of it.
UNFELT = "no row depends on it"

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
    start: float | None = None  # where the fit began: a data sheet's number or a probe's
    cautious: float | None = None  # of layouts unlike the rows (fitting.py: fit_cautiously)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Errors of rows held back from the fit: ln(measured / predicted).

    `low`, `high`: 10 % and 90 % quantile. `own`, `shared`: standard deviations of the part that is
    a layout's own and of the part that rows of a size share (cost/interval.py); None in files
    written before these were told apart.
    """

    low: float
    high: float
    rows: int
    own: float | None = None
    shared: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StackCalibration:
    """One stack: software on a cluster.

    `bands` holds "interpolation" (random folds) and, where the rows allow it, one band per axis of
    AXES from folds that leave a whole value of that axis out. `seen` are the axis values of the
    calibration rows, and the ranges of what their layouts show (cost/interval.py). `generation` is
    the GPU's. `trust`: by axis how far the fit is followed where a row's value of it is new, and
    "untested" where no fold could tell and "layout" where its layout is new, see trust.py.
    `sheet_error`: root mean square of ln(measured / predicted from data sheets), stalled rows cut
    off; None where nobody looked, and in older files. `residual`: what the formulas leave of the
    calibrated rows; None where rows held back are no better for it, and in older files. `outcomes`:
    how need tells what fits, in logarithms (cost/memory_odds.py); empty where too few rows
    ran or too few did not.
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
        """Those for layouts unlike the rows, as far as the file says."""
        stated = {name: fitted.cautious for name, fitted in self.parameters.items()}
        return {name: value for name, value in stated.items() if value is not None}

    @property
    def starts(self) -> dict[str, float]:
        """Where the fit of each parameter began, as far as the file says."""
        began = {name: fitted.start for name, fitted in self.parameters.items()}
        return {name: value for name, value in began.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Every calibrated stack, by framework|cluster."""

    source: str
    stacks: Mapping[str, StackCalibration]

    def parameters_for(self, group: Group) -> tuple[dict[str, float], StackCalibration | None, str]:
        """Parameters for a group, the calibration behind them, and where they are from.

        Its own stack first; then the only stack of its cluster if the group names no software; then
        the same software on another cluster with the same kind of GPU, whose efficiencies carry
        over as ratios of what the data sheet says, but not what its links and allocator did. To
        another generation nothing does: its kernels are others, and what hides behind what follows
        from the new rates.
        """
        own = self.stacks.get(group.key)
        if own is not None:
            return own.values, own, group.key
        here = [key for key, s in self.stacks.items() if s.cluster == group.cluster_name]
        if group.unnamed_software and len(here) == 1:
            return self.stacks[here[0]].values, self.stacks[here[0]], here[0]
        kin = [
            key
            for key, s in self.stacks.items()
            if (s.framework, s.generation) == (group.framework, group.gpu.generation)
        ]
        if kin:
            best = max(kin, key=lambda key: self.stacks[key].rows_timed)
            values = self.stacks[best].values.items()
            carried = {name: v for name, v in values if name not in OF_THE_CLUSTER}
            return {**group.start, **carried}, self.stacks[best], f"{best} (other cluster)"
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
        "link_efficiency", "tp_network_latency_s", "network_efficiency",
        "p2p_efficiency", "p2p_latency_s", "host_transport_s", "stall_s", "buffers_bytes",
        "fragmentation",
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
    try:
        if not path.is_file():
            raise InputError(
                f"{path}: no such file; write one with `scaling calibrate ROWS {path}`"
            )
        record = json.loads(path.read_text(encoding="utf-8"))
    except InputError:
        raise
    except (ValueError, RecursionError, OSError) as error:
        raise InputError(f"{path}: not JSON: {shortened(error, 200)}") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise InputError(f"{path}: schema is not {SCHEMA!r}; this is no calibration file")
    if record.get("version") != VERSION:
        raise InputError(
            f"{path}: version={shortened(record.get('version'))}, this program reads "
            f"{VERSION}; calibrate again"
        )
    return _checked(path, record)


def _checked(path: Path, record: dict[str, Any]) -> Calibration:
    """The record as values, by the types of the dataclasses above and the parameters' bounds."""
    from pydantic import TypeAdapter, ValidationError

    try:
        found = TypeAdapter(Calibration).validate_python(record)
    except ValidationError as error:
        first = error.errors()[0]
        where = shortened(".".join(str(part) for part in first["loc"]), 200)
        raise InputError(f"{path}: {where}: {first['msg']}; calibrate again") from error
    for key, stack in found.stacks.items():
        place = f"{path}: {shortened(key)}"
        missing = [*(PARAMETERS.keys() - stack.parameters.keys())]
        missing += {"interpolation"} - stack.bands.keys()
        missing += set(AXES) - stack.seen.keys()
        if missing:
            raise InputError(f"{place}: {sorted(missing)[0]} is missing; calibrate again")
        if stack.residual is not None and not stack.residual.is_sound:
            raise InputError(f"{place}: residual is none that fits this program; calibrate again")
        odds = stack.outcomes
        if odds and not ({"sigma", "offset"} <= odds.keys() and _is_sound(odds)):
            raise InputError(f"{place}: outcomes has no finite offset, or no sigma above 0")
        for name, ends in stack.seen.items():
            numbers = [end for end in ends if isinstance(end, float) and abs(end) < _WIDEST_RANGE]
            if name not in AXES and not len(numbers) == len(ends) == 2:
                raise InputError(f"{place}: seen.{shortened(name)} is no range of two numbers")
        for name, fitted in stack.parameters.items():
            known = PARAMETERS.get(name)
            if known and not known.low * 0.999 <= fitted.value <= known.high * 1.001:
                wanted = f"is outside {known.low:g} to {known.high:g}"
                raise InputError(f"{place}: {name}={fitted.value!r} {wanted}")
        for name, band in stack.bands.items():
            if not -_WIDEST <= band.low <= band.high <= _WIDEST:
                raise InputError(
                    f"{place}: bands.{shortened(name)} is no band: {band.low}, {band.high}"
                )
            for part in (band.own, band.shared, stack.sheet_error):
                if part is not None and not 0 <= part <= _WIDEST:
                    raise InputError(
                        f"{place}: bands.{shortened(name)} or sheet_error has {part}, no standard "
                        "deviation"
                    )
    return found


def _is_sound(odds: Mapping[str, float]) -> bool:
    return odds["sigma"] > 1e-3 and all(abs(value) < _WIDEST for value in odds.values())


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
