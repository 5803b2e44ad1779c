"""Read a layout's columns and derive the missing ones from the others."""

from collections.abc import Mapping

import numpy as np

from scaling.cluster.hardware import GPUS, Cluster
from scaling.foreign.arrays import Floats
from scaling.foreign.columns import MAX_COUNT, MAX_EXACT_INT, Columns
from scaling.layout.axes import AXES

DEGREES = ("tp", "pp", "cp", "dp")
BATCH_FACTORS = ("micro_batch_size", "gradient_accumulation_steps", "dp")
_PRODUCTS = {"world_size": DEGREES, "global_batch_size": BATCH_FACTORS}
_COUNTED = ("world_size", *DEGREES, *BATCH_FACTORS[:2])
ZERO_MEANS_ONE = ("ep", "virtual_stages")  # counts for which other tools write 0 where we write 1

# Values of other tools that our engines do not have.
_FOREIGN_VALUES = {
    "pipeline_schedule": ("interleaved", "zero_bubble", "zbv"),
    "precision": ("mxfp8", "nvfp4"),
}
# Allowed words of each axis whose values are words.
AXIS_WORDS: Mapping[str, tuple[str, ...]] = {
    name: (*axis.values, *_FOREIGN_VALUES.get(name, ()))
    for name, axis in AXES.items()
    if axis.values and axis.kind is str
}


def read_layout(columns: Columns) -> dict[str, Floats]:
    """world_size, degrees and batch as the table states them, each (n,); NaN where it does not.

    Raises:
        InputError: a cell is not a count.
    """
    known = {name: columns.counts(name) for name in _COUNTED}
    in_nodes = columns.counts("nodes") * columns.counts("gpus_per_node")
    known["world_size"] = np.where(np.isnan(known["world_size"]), in_nodes, known["world_size"])
    known["global_batch_size"] = _batch_of(columns)
    known["dp"] = _dp_without_cp(columns, known)
    if "batch_size" in columns:
        _place_batch(columns, known)
    micro, accumulation = (known[name] for name in BATCH_FACTORS[:2])
    local, name = columns.counts("local_batch_size"), "gradient_accumulation_steps"
    unstated = np.isnan(micro) & ~np.isnan(local)
    if unstated.any():
        columns.assume(
            f"micro_batch_size is not given in {int(unstated.sum())} rows: taken as the local "
            "batch, or as 1 of it in a pipeline"
        )
    parts = (known["pp"] > 1) & np.isnan(accumulation)
    micro = np.where(unstated, np.where(parts, 1.0, local), micro)
    # of local batches, each of some micro-batches
    accumulated = local * accumulation / micro
    several = (local > micro) & (np.mod(accumulated, 1) == 0)
    if several.any():
        columns.assume(f"{name} of {int(several.sum())} rows counts local batches")
    accumulation = np.where(several, accumulated, accumulation)
    in_one = np.isnan(accumulation) & np.isnan(known["global_batch_size"])
    known |= {"micro_batch_size": micro, name: np.where(in_one, local / micro, accumulation)}
    return known


def _dp_without_cp(columns: Columns, known: Mapping[str, Floats]) -> Floats:
    """Replicas, (n,); divided by cp in rows that count the ranks of cp as replicas."""
    dp, cp, world = (known[name] for name in ("dp", "cp", "world_size"))
    tp, pp = (np.where(np.isnan(known[name]), 1.0, known[name]) for name in ("tp", "pp"))
    counts_cp = (cp > 1) & (tp * pp * dp == world) & (np.mod(dp, cp) == 0)
    if counts_cp.any():
        columns.assume(f"dp of {int(counts_cp.sum())} rows counts the ranks of cp too")
    return np.where(counts_cp, dp / cp, dp)


def _place_batch(columns: Columns, known: dict[str, Floats]) -> None:
    """Take `batch_size` as that of all ranks if each row can, else as that of each replica."""
    batch = columns.counts("batch_size")
    parts = np.prod([np.nan_to_num(known[n], nan=1.0) for n in ("tp", "pp", "cp")], axis=0)
    dp = np.where(np.isnan(known["dp"]), known["world_size"] / parts, known["dp"])
    shares = dp * np.nan_to_num(known["micro_batch_size"], nan=1.0)
    uneven = np.mod(batch, shares)[~np.isnan(batch)].any()  # or unknown
    name = "micro_batch_size" if uneven else "global_batch_size"
    if np.isnan(known["global_batch_size"]).all() and np.isnan(known[name]).all():
        known[name] = batch
        columns.assume(f"batch_size is read as {name}")


def fsdp_ranks(columns: Columns) -> Floats:
    """Ranks over which FSDP shards, from the column `fsdp`, (n,): up to 1 for none, inf for all."""
    name = "fsdp"
    if name not in columns:
        return np.zeros(len(columns))
    ranks = np.array([_shard_ranks(text) for text in columns.strings(name, "off").tolist()])
    unknown = np.flatnonzero(np.isnan(ranks)).tolist()
    columns.skip_cells(name, unknown, "must be a number of ranks, or on or off")
    return ranks


def _shard_ranks(text: str) -> float:
    text = text.lower()
    if text in ("on", "true", "yes", "full", "full_shard", "enabled", "zero3"):
        return float("inf")
    if text in ("", "off", "false", "no", "none", "no_shard", "0", "0.0", "/", "-"):
        return 0.0
    number = text.removesuffix(".0")
    return float(number) if number.isdigit() else float("nan")


# More tokens per step than anybody trains with, so a larger batch must be stated in tokens.
_MAX_TOKENS_PER_STEP = 2.0**28


def _batch_of(columns: Columns) -> Floats:
    """Sequences per step, (n,), also where the table counts tokens; NaN where it has neither."""
    name, length = "global_batch_size", columns.counts("seq_length")
    batch = columns.counts(name, high=MAX_EXACT_INT)
    in_tokens = (batch * length > _MAX_TOKENS_PER_STEP) & (np.mod(batch, length) == 0)
    if in_tokens.any():
        columns.assume(f"{name} of {int(in_tokens.sum())} rows is read as tokens")
    batch = np.where(in_tokens, batch / length, batch)
    if (batch > MAX_COUNT).any():
        row = int(np.flatnonzero(batch > MAX_COUNT)[0])
        raise columns.cell_error(name, row, f"must be a whole number from 1 to {MAX_COUNT:,}")
    tokens = columns.numbers("tokens_per_step")
    binary = tokens * 1.048576  # 16M is 2^24, if the sequences are whole then only
    rounded = (np.mod(tokens, length) > 0) & (np.mod(binary, length) == 0)
    if rounded.any():
        columns.assume(f"M of tokens_per_step is read as 2^20 in {int(rounded.sum())} rows")
    return np.where(np.isnan(batch), np.where(rounded, binary, tokens) / length, batch)


def complete_layout(stated: Mapping[str, Floats]) -> dict[str, Floats]:
    """The layout with the one missing value of each product filled in.

    world_size = tp x pp x cp x dp; global_batch_size = micro_batch_size x
    gradient_accumulation_steps x dp. A factor may come out as a fraction, which
    `skip_inconsistent_layouts` reports; what does not follow stays NaN.
    """
    layout = dict(stated)
    for product, factors in _PRODUCTS.items():
        for name in factors:
            others = np.prod([layout[other] for other in factors if other != name], axis=0)
            layout[name] = np.where(np.isnan(layout[name]), layout[product] / others, layout[name])
        whole = np.prod([layout[name] for name in factors], axis=0)
        layout[product] = np.where(np.isnan(layout[product]), whole, layout[product])
    return layout


def skip_inconsistent_layouts(columns: Columns, layouts: Mapping[str, Floats]) -> None:
    """Skip rows whose degrees and batch, from `complete_layout`, contradict each other.

    Raises:
        InputError: all rows do.
    """
    for product, factors in _PRODUCTS.items():
        stated, whole = layouts[product], np.prod([layouts[name] for name in factors], axis=0)
        uneven = np.any([np.mod(layouts[name], 1) > 0 for name in factors], axis=0)
        reason = f"{product} is not {' x '.join(factors)}"
        for row in np.flatnonzero(uneven | (stated != whole) & ~np.isnan(stated + whole)).tolist():
            columns.skip_row(row, str(columns.cell_error(product, row, reason)))


def gpu_of_cluster(cluster: str, clusters: Mapping[str, Cluster]) -> str | None:
    """The GPU of a cluster; of an unknown cluster the GPU that its name starts with, if any."""
    if cluster in clusters:
        return clusters[cluster].gpu
    prefixes = [gpu for gpu in GPUS if cluster == gpu or cluster.startswith(f"{gpu}-")]
    return max(prefixes, key=len, default=None)
