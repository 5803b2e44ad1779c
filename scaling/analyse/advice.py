"""Which layout to use at each size, with as few changes as the noise of the rates allows."""

import itertools
import math
from collections.abc import Mapping

import duckdb
import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("setting_id", pa.int64()), ("series", pa.string()), ("world_size", pa.int64()),
        ("layout", pa.string()), ("layout_name", pa.string()), ("stretch", pa.int64()),
        ("share_of_best", pa.float64()),
    ]
)  # fmt: skip


def fewest_switches(advisable: Mapping[int, Mapping[str, float]]) -> dict[int, str]:
    """Choose an advisable layout for each GPU count, with as few changes as possible.

    Dynamic programming over the sizes: the best path to each layout of a size either comes from the
    same layout at the size before, or switches from the best path there.

    Args:
        advisable: per world_size (GPUs), the layouts that are not told apart from the fastest, each
            with its throughput as a share of it. Sizes where nothing ran are absent or empty.

    Returns:
        Layouts by size, in order: of the choices with the fewest changes the one with the highest
        product of shares over all sizes; of equal ones, which are the same training, that with the
        shortest names.
    """
    # per last layout: (switches, -ln of the product of shares, layouts chosen so far with the
    # length of their names)
    paths: dict[str, tuple[int, float, tuple[tuple[int, str], ...]]] = {}
    sizes = [size for size in sorted(advisable) if advisable[size]]
    for size in sizes:
        switches, loss, layouts = min(paths.values()) if paths else (-1, 0.0, ())
        switched = (switches + 1, loss, layouts)
        longer_paths = {}
        for layout, share in advisable[size].items():
            switches, loss, layouts = min(switched, paths.get(layout, switched))
            longer_paths[layout] = (
                switches,
                loss - math.log(share),
                (*layouts, (len(layout), layout)),
            )
        paths = longer_paths
    chosen = min(paths.values())[2] if paths else ()
    return {size: layout for size, (_, layout) in zip(sizes, chosen, strict=True)}


def advised_layouts(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per setting, series and size: the advised layout.

    stretch: numbers the runs of neighbouring sizes with the same layout.
    """
    rows = connection.execute(
        "select setting_id, series, world_size, layout, share_of_best, layout_name from rivals "
        "join names using (setting_id, layout) where advisable order by all"
    ).fetchall()
    names = {(setting, layout): name for setting, _, _, layout, _, name in rows}
    settings: dict[tuple[int, str], dict[int, dict[str, float]]] = {}
    for setting, series, size, layout, share, _ in rows:
        settings.setdefault((setting, series), {}).setdefault(size, {})[layout] = share
    records = []
    for (setting, series), advisable in settings.items():
        advised = fewest_switches(advisable).items()
        stretches = itertools.groupby(advised, key=lambda size_and_layout: size_and_layout[1])
        for number, (layout, sizes) in enumerate(stretches):
            records += [
                {
                    "setting_id": setting, "series": series, "world_size": size, "layout": layout,
                    "layout_name": names[setting, layout], "stretch": number,
                    "share_of_best": advisable[size][layout],
                }
                for size, _ in sizes
            ]  # fmt: skip
    return pa.Table.from_pylist(records, schema=SCHEMA)
