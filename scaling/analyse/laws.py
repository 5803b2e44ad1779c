"""Scaling laws through the best layouts: fitted, chosen by held-out error, and extrapolated.

Written for the GPU-seconds of a token, all three laws are linear in their parameters, so each fit
is one non-negative least-squares problem (scipy):

    amdahl         N / T = (1 + s (N - 1)) / t1                     Amdahl, 1967
    usl            N / T = (1 + s (N - 1) + k N (N - 1)) / t1       Gunther's USL, arXiv 0808.1431
    communication  N / T = (1 + s (N - 1) + c N log2 N) / t1        a tree collective every step

with T tokens/s on N GPUs, t1 tokens/s of one GPU, s the serial share, and k and c the cost of
coordination. N counts from 1, whatever the smallest size that ran.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scaling.analyse.ties import interval_z

Floats = npt.NDArray[np.float64]

LEAST_SIZES = 4  # with fewer sizes no law can be tested on held-out ones
REFITS = 500
REACH = 8  # curves end at this many times the largest size
_SEED = 20_200

BASES: Mapping[str, Callable[[Floats], Floats]] = {
    "amdahl": lambda n: np.stack([np.ones_like(n), n - 1], axis=1),
    "usl": lambda n: np.stack([np.ones_like(n), n - 1, n * (n - 1)], axis=1),
    "communication": lambda n: np.stack([np.ones_like(n), n - 1, n * np.log2(n)], axis=1),
}
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "amdahl": ("t1", "serial"),
    "usl": ("t1", "serial", "coherency"),
    "communication": ("t1", "serial", "communication"),
}
_NAMES = ("t1", "serial", "coherency", "communication")

SCHEMA = pa.schema(
    [
        ("setting_id", pa.int64()), ("series", pa.string()), ("law", pa.string()),
        ("chosen", pa.bool_()), ("sizes", pa.int64()), ("held_out", pa.int64()),
        ("held_out_error", pa.float64()), ("fit_error", pa.float64()),
        ("leaves_data_at", pa.int64()), ("peak_world_size", pa.float64()),
        *((f"{name}{end}", pa.float64()) for name in _NAMES for end in ("", "_low", "_high")),
        ("draws", pa.list_(pa.list_(pa.float64()))),
    ]
)  # fmt: skip
CURVE = pa.schema(
    [
        ("setting_id", pa.int64()), ("series", pa.string()), ("law", pa.string()),
        ("world_size", pa.float64()), ("tokens_per_s", pa.float64()),
        ("tokens_per_s_low", pa.float64()), ("tokens_per_s_high", pa.float64()),
        ("inside_data", pa.bool_()),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Law:
    """A fitted law: the coefficients of its basis, 1 / t1 first."""

    name: str
    coefficients: Floats

    def tokens_per_s(self, world_size: Floats) -> Floats:
        """Throughput at these sizes, (n,) -> (n,)."""
        return np.asarray(world_size / (BASES[self.name](world_size) @ self.coefficients))

    def parameters(self) -> dict[str, float]:
        """t1 in tokens/s, the others as ratios; empty if t1 is not determined."""
        if self.coefficients[0] <= 0:
            return {}
        scaled = self.coefficients / self.coefficients[0]
        values = [1 / self.coefficients[0], *scaled[1:]]
        return dict(zip(PARAMETERS[self.name], map(float, values), strict=True))

    def peak_world_size(self) -> float | None:
        """Size beyond which throughput falls: sqrt((1 - s) / k) for a usl, else None."""
        if self.name != "usl" or not (usl := self.parameters()):
            return None
        if usl["coherency"] <= 0 or usl["serial"] >= 1:
            return None
        return float(np.sqrt((1 - usl["serial"]) / usl["coherency"]))


def fit(name: str, world_size: Floats, *curves: Floats) -> list[Law]:
    """Fit a law to each curve: least squares of relative errors, no parameter below zero.

    Args:
        name: a name of BASES.
        world_size: GPUs, (n,).
        curves: tokens/s at these sizes, each (n,), all above zero.
    """
    from scipy.optimize import nnls  # takes a quarter of a second, needed only with enough sizes

    basis, ones = BASES[name](world_size), np.ones_like(world_size)
    targets = [world_size / curve for curve in curves]
    return [Law(name, nnls(basis / target[:, None], ones)[0]) for target in targets]


def held_out_errors(name: str, world_size: Floats, tokens_per_s: Floats) -> Floats:
    """|predicted / measured - 1| of each size from the fourth on, fitted to smaller sizes only."""
    errors = []
    for fitted in range(LEAST_SIZES - 1, len(world_size)):
        (law,) = fit(name, world_size[:fitted], tokens_per_s[:fitted])
        predicted = law.tokens_per_s(world_size[fitted : fitted + 1])[0]
        errors.append(abs(predicted / tokens_per_s[fitted] - 1))
    return np.asarray(errors)


def refits(law: Law, world_size: Floats, tokens_per_s: Floats, relative_sd: Floats) -> list[Law]:
    """Fit the law to REFITS curves drawn around it: a parametric bootstrap.

    Args:
        law: fitted to `tokens_per_s`.
        world_size: GPUs, (n,).
        tokens_per_s: (n,).
        relative_sd: standard deviation of each rate, a ratio, (n,); at least the misfit of the law.
    """
    random = np.random.default_rng(_SEED)
    fitted = law.tokens_per_s(world_size)
    degrees_of_freedom = max(1, len(world_size) - len(PARAMETERS[law.name]))
    misfit = np.sqrt(np.sum((tokens_per_s / fitted - 1) ** 2) / degrees_of_freedom)
    sd = np.maximum(relative_sd, misfit)
    drawn = fitted * np.exp(random.normal(size=(REFITS, len(fitted))) * sd)
    return fit(law.name, world_size, *drawn)


def fitted_laws(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per setting, observed series and law, where at least LEAST_SIZES sizes ran.

    `chosen` is the law with the smallest mean error on held-out sizes. Intervals are 95 %
    percentiles of the refits, without those that leave t1 undetermined.
    """
    rows = connection.execute(
        """
        select setting_id, series, world_size, tokens_per_s, margin
        from best where series != 'predicted' and drawn
        order by setting_id, series, world_size
        """
    ).fetchall()
    curves: dict[tuple[int, str], list[tuple[float, float, float]]] = {}
    for setting, series, *values in rows:
        curves.setdefault((setting, series), []).append((values[0], values[1], values[2]))
    records = []
    for (setting, series), values in curves.items():
        if len(values) >= LEAST_SIZES:
            sizes, rates, margins = np.asarray(values, dtype=float).T
            laws = [_record(name, sizes, rates, margins / interval_z(series)) for name in BASES]
            # errors equal to four digits count as a tie: the first law has the fewest parameters
            best = min(laws, key=lambda law: round(float(str(law["held_out_error"])), 4))
            records += [
                {**law, "setting_id": setting, "series": series, "chosen": law is best}
                for law in laws
            ]
    return pa.Table.from_pylist(records, schema=SCHEMA)


def _record(name: str, sizes: Floats, rates: Floats, sd: Floats) -> dict[str, object]:
    (law,) = fit(name, sizes, rates)
    drawn = refits(law, sizes, rates, sd)
    errors = held_out_errors(name, sizes, rates)
    record: dict[str, object] = {
        "law": name,
        "sizes": len(sizes),
        "held_out": len(errors),
        "held_out_error": float(errors.mean()),
        "fit_error": float(np.mean(np.abs(law.tokens_per_s(sizes) / rates - 1))),
        "leaves_data_at": int(sizes[-1]),
        "peak_world_size": law.peak_world_size(),
        "draws": [law.coefficients.tolist(), *(one.coefficients.tolist() for one in drawn)],
        **law.parameters(),
    }
    fitted = [parameters for one in drawn if (parameters := one.parameters())]
    for parameter in PARAMETERS[name]:
        if fitted and parameter in record:
            values = [one[parameter] for one in fitted]
            low, high = np.quantile(values, [0.025, 0.975])
            record |= {f"{parameter}_low": float(low), f"{parameter}_high": float(high)}
    return record


def law_curves(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """Vertices of the chosen laws up to REACH times the largest size, with a band.

    The band spans the 95 % bands of the parameters of all laws, because few sizes seldom tell which
    law is the true one. It leaves out that none of them may be.
    """
    rows = connection.execute(
        """
        select setting_id, series, law, leaves_data_at, draws,
            (select min(world_size) from best
                where best.setting_id = laws.setting_id and best.series = laws.series)
        from laws order by setting_id, series, chosen desc, law
        """
    ).fetchall()
    records = []
    for (setting, series), group in itertools.groupby(rows, key=lambda row: row[:2]):
        fitted = list(group)
        _, _, name, last, _, first = fitted[0]
        sizes = np.unique(np.append(np.geomspace(first, REACH * last, 33), float(last)))
        bands, middle = [], np.zeros_like(sizes)
        for _, _, law, _, draws, _ in fitted:
            curves = [Law(law, np.asarray(one)).tokens_per_s(sizes) for one in draws]
            middle = curves[0] if law == name else middle
            bands.append(np.quantile(np.stack(curves[1:]), [0.025, 0.975], axis=0))
        low, high = np.min(bands, axis=(0, 1)), np.max(bands, axis=(0, 1))
        records += [
            {
                "setting_id": setting, "series": series, "law": name, "world_size": size,
                "tokens_per_s": rate, "tokens_per_s_low": least, "tokens_per_s_high": most,
                "inside_data": size <= last,
            }
            for size, rate, least, most in np.stack([sizes, middle, low, high], axis=1).tolist()
        ]  # fmt: skip
    return pa.Table.from_pylist(records, schema=CURVE)
