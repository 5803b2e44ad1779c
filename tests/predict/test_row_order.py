"""Results do not depend on the order of its rows, and repeats are one candidate."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.cli.prediction import calibrate
from scaling.predict.cost.model import predict
from scaling.predict.fit import rivals
from scaling.predict.fit.validation import trial
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from scaling.published.table import published_table
from tests.nearly import nearly
from tests.predict.conftest import as_table, table_of

pytestmark = pytest.mark.slow

TABLES = {
    name: published_table().filter(pc.equal(published_table()["table"], name))
    for name in ("dgxc", "megatron_bridge", "moe_zoo")
}


def repeated(table: pa.Table) -> pa.Table:
    """Some rows twice, with another step time: repeats of their layouts."""
    again = table.slice(0, 20)
    slower = pc.multiply(again["step_time_s"], 1.07)
    place = table.column_names.index("step_time_s")
    return pa.concat_tables([table, again.set_column(place, "step_time_s", slower)])


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(sorted(TABLES)), st.integers(0, 2**32 - 1), st.booleans())
def test_validation_does_not_depend_on_the_order_of_rows(name: str, seed: int, more: bool) -> None:
    table = repeated(TABLES[name]) if more else TABLES[name]
    shuffled = table.take(np.random.default_rng(seed).permutation(table.num_rows))
    one, other = (trial(as_table(each)).to_dict() for each in (table, shuffled))
    assert one == nearly(other)


def test_nor_does_the_calibration_that_a_validation_makes() -> None:
    table = TABLES["moe_zoo"]
    shuffled = table.take(np.random.default_rng(1).permutation(table.num_rows))
    where = {"calibrate_where": "world_size <= 256", "test_where": "true"}
    one, other = (trial(as_table(each), **where).to_dict() for each in (table, shuffled))
    assert one == nearly(other)


def test_a_calibration_is_the_same_file_in_whichever_order_its_rows_came(tmp_path: Path) -> None:
    table, made = TABLES["moe_zoo"], set()
    for seed in range(3):
        shuffled = table.take(np.random.default_rng(seed).permutation(table.num_rows))
        pq.write_table(shuffled, tmp_path / "rows.parquet")
        calibrate(tmp_path / "rows.parquet", tmp_path / "calibration.json")
        made.add((tmp_path / "calibration.json").read_bytes())
    assert len(made) == 1


def settings_and_pairs(*rows: dict[str, Any]) -> tuple[list[rivals.Setting], rivals.Pairs]:
    columns = as_table(table_of(*rows), "t")
    points, observed = points_of(columns), observed_of(columns)
    assert predict(points).predicted.all()
    numbers = rivals.layout_numbers(points)
    found = rivals.settings_of(points, numbers, observed.step_time_s, observed.timed)
    return found, rivals.pairs_of(found)


def runs(*steps_s: float, **layout: Any) -> list[dict[str, Any]]:
    return [{"outcome": "ok", "dp": 8, "step_time_s": step, **layout} for step in steps_s]


def test_repeats_of_a_layout_are_one_rival_with_their_median() -> None:
    rows = [*runs(1.0, 9.0, 3.0, zero_stage=1), *runs(2.0, 4.0)]
    (setting,), pairs = settings_and_pairs(*rows)
    assert sorted(setting.step_time_s.tolist()) == [3.0, 3.0]
    assert sorted(setting.repeats.tolist()) == [2, 3]
    sides = {tuple(sorted(pair)) for pair in zip(pairs.a.tolist(), pairs.b.tolist(), strict=True)}
    assert sides == {(i, j) for i in range(3) for j in (3, 4)}
    assert pairs.weight.sum() == pytest.approx(5)


def test_a_layout_alone_has_no_pairs_however_often_it_ran() -> None:
    for count in (3, 300):
        (setting,), pairs = settings_and_pairs(*runs(*np.linspace(1, 2, count)))
        assert len(setting.layouts) == 1
        assert not len(pairs.a)


def test_of_very_many_pairs_a_sample_stands_for_all() -> None:
    rows = [*runs(*[1.0] * 600, zero_stage=1), *runs(*[1.0] * 300)]
    rows += runs(*[1.0] * 100, zero_stage=2)
    (setting,), pairs = settings_and_pairs(*rows)
    place = np.searchsorted([0, 600, 900], [pairs.a, pairs.b], side="right")
    assert len(pairs.a) == 10_000
    assert (place[0] != place[1]).all()
    assert pairs.weight.sum() == pytest.approx(len(rows))
    # of 600 x 300 + 600 x 100 + 300 x 100 pairs
    with_both_large = np.isin(place, [1, 2]).all(axis=0).mean()
    assert with_both_large == pytest.approx(180 / 270, abs=0.02)
    assert len(setting.rows) == len(rows)
