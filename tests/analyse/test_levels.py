"""Words of choices, and energy: worked by hand."""

import duckdb
import pyarrow as pa
import pytest

from scaling.analyse import catalogue
from scaling.layout.axes import AXES
from tests.analyse.conftest import SQL, some_point
from tests.analyse.test_tables import ran

pytestmark = pytest.mark.slow


def test_each_word_of_others_is_a_level_of_its_own():
    defaults = {name: str(axis.default) for name, axis in AXES.items()}
    words = [f"their kernel {number}" for number in range(300)]
    with duckdb.connect() as connection:
        catalogue.attach_catalogue(connection, {})
        catalogue.set_variables(connection)
        chosen = [
            {"group_id": 1, "layout": word, "name": name, "value": value}
            for word in words
            for name, value in (defaults | {"attention": word}).items()
        ]
        connection.register("choices_by_axis", pa.Table.from_pylist(chosen))
        query = (SQL / "inner/differing_choices.sql").read_text(encoding="utf-8")
        places = connection.sql(query).select("level, place").fetchall()
    assert sorted(level for level, _ in places) == sorted(words)
    assert len({place for _, place in places}) == len(words)


def test_energy_is_of_all_devices_and_power_of_one(tabulated):
    only = some_point(4)
    (found,) = tabulated([only], [ran(only, 100, energy_j=500.0, mean_power_w=2000.0)])("sizes")
    assert found["tokens_per_joule"] == 1024 / 500
    assert found["power_per_gpu_w"] == 500.0
