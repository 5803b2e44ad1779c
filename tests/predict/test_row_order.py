"""Results do not depend on the order of its rows, and repeats are one candidate."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from scaling.cli.prediction import calibrate
from scaling.predict.fit.validation import layout_numbers, settings_of, trial
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from scaling.published.table import published_table
from tests.predict.conftest import as_table, table_of

pytestmark = pytest.mark.slow

TABLES = {
    name: published_table().filter(pc.equal(published_table()["table"], name))
    for name in ("dgxc", "megatron_bridge", "moe_zoo")
}


def test_a_calibration_is_the_same_file_in_whichever_order_its_rows_came(tmp_path: Path) -> None:
    table, made = TABLES["moe_zoo"], set()
    for seed in range(3):
        shuffled = table.take(np.random.default_rng(seed).permutation(table.num_rows))
        pq.write_table(shuffled, tmp_path / "rows.parquet")
        calibrate(tmp_path / "rows.parquet", tmp_path / "calibration.json")
        made.add((tmp_path / "calibration.json").read_bytes())
    assert len(made) == 1


def runs(*steps_s: float, **layout: Any) -> list[dict[str, Any]]:
    return [{"outcome": "ok", "dp": 8, "step_time_s": step, **layout} for step in steps_s]


def test_repeats_of_a_layout_are_one_rival_with_their_median() -> None:
    columns = as_table(table_of(*runs(1.0, 9.0, 3.0, zero_stage=1), *runs(2.0, 4.0)), "t")
    points, observed = points_of(columns), observed_of(columns)
    rows = np.flatnonzero(observed.timed)
    ((layouts, step_s),) = settings_of(points, layout_numbers(points), observed.step_time_s, rows)
    assert sorted(step_s.tolist()) == [3.0, 3.0]
    assert len(layouts) == 2


def test_a_layout_alone_has_no_ratios_however_often_it_ran() -> None:
    for count in (3, 300):
        found = trial(as_table(table_of(*runs(*np.linspace(1, 2, count))), "t"))
        assert found.overall.regret["groups"] == 0
        assert found.overall.coverage_80_ratios is None


def test_very_many_layouts_of_a_setting_are_scored_by_some_of_them() -> None:
    rows = runs(*[1.0] * 2500)
    rows = [{**row, "vocab_size": 32000 + number} for number, row in enumerate(rows)]
    assert trial(as_table(table_of(*rows), "t")).overall.coverage_80_ratios == 1.0
