"""Advice with as few changes of layout as the noise of the rates allows."""

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


def fewest_switches(good: Mapping[int, Mapping[str, float]]) -> dict[int, str]:
    """A layout for each GPU count that is good there, with as few changes as there can be.

    Dynamic programming over the sizes: for each layout that is good at a size, the best way to end
    there, which either keeps the layout or takes over from the best way to end at the size before.

    Args:
        good: per world_size (GPUs), the layouts that are not told apart from the fastest and their
            throughput as a share of it. A size where nothing ran is left out or empty.

    Returns:
        Layouts by size, in order: of the choices with the fewest changes the one with the highest
        product of shares over all sizes, of equal ones the first by name.
    """
    # per layout: (switches, -ln of the product of shares), and the layouts chosen so far
    ways: dict[str, tuple[int, float, tuple[str, ...]]] = {}
    sizes = [size for size in sorted(good) if good[size]]
    for size in sizes:
        before = min(ways.values()) if ways else (-1, 0.0, ())
        here = {}
        for layout, share in good[size].items():
            switches, loss, path = before[0] + 1, before[1], before[2]
            if layout in ways:
                switches, loss, path = min((switches, loss, path), ways[layout])
            here[layout] = (switches, loss - math.log(share), (*path, layout))
        ways = here
    return dict(zip(sizes, min(ways.values())[2], strict=True)) if ways else {}


def advised_layouts(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """The advised layout of each setting, series and size, and which stretch of sizes it is of."""
    near = connection.execute(
        "select setting_id, series, world_size, layout, share_of_best, layout_name from rivals "
        "join names using (setting_id, layout) where advisable order by all"
    ).fetchall()
    names = {(setting, layout): name for setting, _, _, layout, _, name in near}
    settings: dict[tuple[int, str], dict[int, dict[str, float]]] = {}
    for setting, series, size, layout, share, _ in near:
        settings.setdefault((setting, series), {}).setdefault(size, {})[layout] = share
    records = []
    for (setting, series), good in settings.items():
        advised = itertools.groupby(fewest_switches(good).items(), key=lambda one: one[1])
        for number, (layout, sizes) in enumerate(advised):
            records += [
                {
                    "setting_id": setting, "series": series, "world_size": size, "layout": layout,
                    "layout_name": names[setting, layout], "stretch": number,
                    "share_of_best": good[size][layout],
                }
                for size, _ in sizes
            ]  # fmt: skip
    return pa.Table.from_pylist(records, schema=SCHEMA)
