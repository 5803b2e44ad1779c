"""How sure a mean effect is: a bootstrap over the matched pairs it stands on."""

import duckdb
import numpy as np
import pyarrow as pa

from scaling.analyse.ties import Z95
from scaling.record.interval import Values

FEWEST_PAIRS = 3  # fewer say nothing of what other pairs would say
RESAMPLES = 1000
# A bootstrap of a mean of more pairs than this gives the normal interval, which costs nothing.
_MANY = 100
_SEED = 20_200

_KEYS = ("setting_id", "series", "factor_id", "from_place", "to_place")
SCHEMA = pa.schema(
    [
        ("setting_id", pa.int64()), ("series", pa.string()), ("factor_id", pa.int64()),
        ("from_place", pa.float64()), ("to_place", pa.float64()), ("near_low", pa.float64()),
        ("near_high", pa.float64()),
    ]
)  # fmt: skip


def effect_intervals(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """The 95 % interval of each effect's mean ratio over its pairs near the fastest layouts.

    One row per effect with at least FEWEST_PAIRS such pairs.
    Percentile bootstrap: as many pairs as there are, drawn with replacement.
    """
    effects = connection.execute(
        f"select {', '.join(_KEYS)}, list(ln(ratio) order by world_size, to_layout_id) "
        f"from matched_pairs where near group by all having count(*) >= {FEWEST_PAIRS} order by all"
    ).fetchall()
    random = np.random.default_rng(_SEED)
    records = []
    for *keys, logarithms in effects:
        low, high = _mean_interval(np.asarray(logarithms), random)
        ends = {"near_low": float(np.exp(low)), "near_high": float(np.exp(high))}
        records.append({**dict(zip(_KEYS, keys, strict=True)), **ends})
    return pa.Table.from_pylist(records, schema=SCHEMA)


def _mean_interval(values: Values, random: np.random.Generator) -> tuple[float, float]:
    if len(values) > _MANY:
        half = Z95 * float(values.std(ddof=1)) / len(values) ** 0.5
        return float(values.mean()) - half, float(values.mean()) + half
    drawn = random.integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)
