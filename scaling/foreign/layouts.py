"""What the columns of a layout imply of each other: one rule, whoever reads the table."""

from collections.abc import Mapping

import numpy as np

from scaling.cluster.hardware import GPUS, Cluster
from scaling.errors import InputError
from scaling.foreign.arrays import Floats
from scaling.foreign.columns import MAX_COUNT, MAX_EXACT_INT, Columns
from scaling.layout.axes import AXES

DEGREES = ("tp", "pp", "cp", "dp")
BATCH_FACTORS = ("micro_batch_size", "gradient_accumulation_steps", "dp")
_LAYOUT = ("world_size", "global_batch_size", *DEGREES, *BATCH_FACTORS[:2])

# What others train by goes beyond what this project's engines do.
_OTHERS = {
    "pipeline_schedule": ("interleaved", "zero_bubble", "zbv"),
    "precision": ("mxfp8", "nvfp4"),
}
AXIS_WORDS: Mapping[str, tuple[str, ...]] = {
    name: (*axis.values, *_OTHERS.get(name, ()))
    for name, axis in AXES.items()
    if axis.values and axis.kind is str
}


def read_layout(columns: Columns) -> dict[str, Floats]:
    """world_size, degrees and batch as the table states them, (n,); NaN where it does not.

    Raises:
        InputError: a cell is no count.
    """
    known = {name: columns.counts(name) for name in _LAYOUT if name != "global_batch_size"}
    in_nodes = columns.counts("nodes") * columns.counts("gpus_per_node")
    known["world_size"] = np.where(np.isnan(known["world_size"]), in_nodes, known["world_size"])
    known["global_batch_size"] = _batch_of(columns)
    known["dp"] = _dp_without_cp(columns, known)
    local, name = columns.counts("local_batch_size"), "gradient_accumulation_steps"
    # of local batches, each of some micro-batches
    accumulated = local * known[name] / known["micro_batch_size"]
    several = (local > known["micro_batch_size"]) & (np.mod(accumulated, 1) == 0)
    if several.any():
        columns.assume(f"{name} of {int(several.sum())} rows counts local batches")
    known[name] = np.where(several, accumulated, known[name])
    return known


def _dp_without_cp(columns: Columns, known: Mapping[str, Floats]) -> Floats:
    """Replicas, (n,), of a table that may count the ranks of cp among them."""
    dp, cp, world = (known[name] for name in ("dp", "cp", "world_size"))
    tp, pp = (np.where(np.isnan(known[name]), 1.0, known[name]) for name in ("tp", "pp"))
    with_cp = (cp > 1) & (tp * pp * dp == world) & (np.mod(dp, cp) == 0)
    if with_cp.any():
        columns.assume(f"dp of {int(with_cp.sum())} rows counts the ranks of cp too")
    return np.where(with_cp, dp / cp, dp)


def fsdp_ranks(columns: Columns) -> Floats:
    """Ranks over which a column `fsdp` says that everything is sharded, (n,): 1 none, inf all."""
    name = "fsdp"
    if name not in columns:
        return np.ones(len(columns))
    words = columns.strings(name, "1")
    ranks = {word: _ranks_of(word) for word in set(words.tolist())}
    for row in np.flatnonzero([np.isnan(ranks[word]) for word in words.tolist()]).tolist():
        error = columns.cell_error(name, row, "must be a number of ranks, or on or off")
        columns.skip_row(row, str(error))
    return np.array([ranks[word] for word in words.tolist()], dtype=np.float64)


def _ranks_of(word: str) -> float:
    small = word.lower()
    if small in ("on", "true", "yes", "full", "full_shard", "enabled", "zero3"):
        return float("inf")
    if small in ("", "off", "false", "no", "none", "no_shard", "0", "0.0", "/", "-"):
        return 1.0
    number = small.removesuffix(".0")
    return float(number) if number.isdigit() else float("nan")


# More tokens a step than anybody trains: a batch so large is stated in tokens, not sequences.
_MOST_TOKENS_A_STEP = 2.0**28


def _batch_of(columns: Columns) -> Floats:
    """Sequences a step, (n,), of a table that may count tokens; NaN where it says nothing."""
    name, length = "global_batch_size", columns.counts("seq_length")
    batch = columns.counts(name, high=MAX_EXACT_INT)
    in_tokens = (batch * length > _MOST_TOKENS_A_STEP) & (np.mod(batch, length) == 0)
    if in_tokens.any():
        columns.assume(f"{name} of {int(in_tokens.sum())} rows is read as tokens")
    batch = np.where(in_tokens, batch / length, batch)
    if (batch > MAX_COUNT).any():
        row = int(np.flatnonzero(batch > MAX_COUNT)[0])
        raise columns.cell_error(name, row, f"must be a whole number from 1 to {MAX_COUNT:,}")
    return np.where(np.isnan(batch), columns.numbers("tokens_per_step") / length, batch)


def complete_layout(stated: Mapping[str, Floats]) -> dict[str, Floats]:
    """The same with what follows: of a product and its factors, the one that is missing.

    world_size = tp x pp x cp x dp; global_batch_size = micro_batch_size x
    gradient_accumulation_steps x dp. A factor that does not divide comes out as a fraction, which
    `skip_inconsistent_layouts` tells; what does not follow stays NaN.
    """
    known = dict(stated)
    _complete(known, "world_size", DEGREES)
    _complete(known, "global_batch_size", BATCH_FACTORS)
    return known


def _complete(known: dict[str, Floats], product: str, factors: tuple[str, ...]) -> None:
    for name in factors:
        others = np.prod([known[one] for one in factors if one != name], axis=0)
        known[name] = np.where(np.isnan(known[name]), known[product] / others, known[name])
    whole = np.prod([known[one] for one in factors], axis=0)
    known[product] = np.where(np.isnan(known[product]), whole, known[product])


def skip_inconsistent_layouts(columns: Columns, layouts: Mapping[str, Floats]) -> None:
    """Leave out rows whose degrees and batch, `complete_layout`, do not fit together.

    Raises:
        InputError: no row's do.
    """
    for product, factors in (("world_size", DEGREES), ("global_batch_size", BATCH_FACTORS)):
        stated, whole = layouts[product], np.prod([layouts[one] for one in factors], axis=0)
        uneven = np.any([np.mod(layouts[one], 1) > 0 for one in factors], axis=0)
        reason = f"{product} is not {' x '.join(factors)}"
        for row in np.flatnonzero(uneven | (stated != whole) & ~np.isnan(stated + whole)).tolist():
            error = (
                columns.cell_error(product, row, reason)
                if product in columns
                else InputError(f"{columns.place(row)}: {reason}")
            )
            columns.skip_row(row, str(error))


def gpu_of_cluster(cluster: str, clusters: Mapping[str, Cluster]) -> str | None:
    """A cluster's GPU: as described, else the one of the catalogue that its name starts with."""
    if cluster in clusters:
        return clusters[cluster].gpu
    named = [gpu for gpu in GPUS if cluster == gpu or cluster.startswith(f"{gpu}-")]
    return max(named, key=len, default=None)
