"""The names of the layouts of a study, from `scaling.layout.names`."""

from collections import Counter

import duckdb
import pyarrow as pa

from scaling.layout.axes import AXES, SETTING_AXES
from scaling.layout.names import layout_name


def layout_words(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per comparison group and layout: layout_name.

    Layouts with equal words each state what they leave unstated and another states.
    """
    axes = [name for name in AXES if name not in SETTING_AXES]
    rows = connection.sql(
        f"select group_id, layout, gpus_per_node, {', '.join(axes)} "
        "from layout_choices join comparison_groups using (group_id)"
    ).fetchall()
    choices = [dict(zip(axes, row[3:], strict=True)) for row in rows]
    names = [layout_name(chosen, row[2]) for chosen, row in zip(choices, rows, strict=True)]
    alike = Counter((row[0], name) for row, name in zip(rows, names, strict=True))
    stated = {
        (row[0], name)
        for row, chosen in zip(rows, choices, strict=True)
        for name, value in chosen.items()
        if value is not None
    }
    for place, (row, chosen) in enumerate(zip(rows, choices, strict=True)):
        if alike[row[0], names[place]] > 1:
            open_ = [
                AXES[name].text.title
                for name, value in chosen.items()
                if value is None and not AXES[name].optional and (row[0], name) in stated
            ]
            names[place] += f" ({', '.join(open_)} unstated)" if open_ else ""
    return pa.table(
        {
            "group_id": pa.array([row[0] for row in rows], pa.int64()),
            "layout": pa.array([row[1] for row in rows], pa.string()),
            "layout_name": pa.array(names, pa.string()),
        }
    )
