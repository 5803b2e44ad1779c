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
    ).to_arrow_table()
    layouts, groups = rows.select(axes).to_pylist(), rows["group_id"].to_pylist()
    names = list(map(layout_name, layouts, rows["gpus_per_node"].to_pylist()))
    alike = Counter(zip(groups, names, strict=True))
    stated = {
        (group, name)
        for group, chosen in zip(groups, layouts, strict=True)
        for name in axes
        if chosen[name] is not None
    }
    for place, (group, chosen) in enumerate(zip(groups, layouts, strict=True)):
        open_ = [
            AXES[name].text.title
            for name in axes
            if chosen[name] is None and not AXES[name].optional and (group, name) in stated
        ]
        if open_ and alike[group, names[place]] > 1:
            names[place] += f" ({', '.join(open_)} unstated)"
    return rows.select(["group_id", "layout"]).append_column(
        "layout_name", pa.array(names, pa.string())
    )
