"""Which model and which hardware a row of others is about."""

import pyarrow as pa
import pytest

from scaling.foreign.columns import Columns
from scaling.foreign.identity import SHAPE, identify_gpus, identify_models, rename_by_depth
from tests.shipped import MODELS


@pytest.fixture
def columns():
    return Columns(pa.table({"model": ["one", "two"]}), "rows.csv")


def test_a_row_of_one_models_shape_takes_its_name_and_says_so_once(columns):
    shape = {name: getattr(MODELS["llama2_7b"], name) for name in SHAPE}
    stated = {"model": "our-7b", **shape}
    named = identify_models(columns, [stated, dict(stated)], MODELS)
    assert [row["model"] for row in named] == ["llama2_7b", "llama2_7b"]
    assert columns.assumptions == ["model: our-7b is read as llama2_7b"]


def test_a_name_beside_another_models_sizes_is_not_that_model(columns):
    named = identify_models(columns, [{"model": "llama2_7b", "num_layers": 33}], MODELS)
    assert named == [{}]


def test_models_of_one_name_and_several_depths_are_several(columns):
    rows = [{"model": "wide", "num_layers": layers} for layers in (4, 8, 4)]
    rename_by_depth(columns, rows)
    assert [row["model"] for row in rows] == ["wide-4-layers", "wide-8-layers", "wide-4-layers"]


def test_a_row_without_a_cluster_is_on_one_of_its_gpu_and_an_unknown_gpu_is_left_out(columns):
    rows = [{"gpu": "NVIDIA H100 80GB HBM3"}, {"gpu": "abacus"}]
    assert identify_gpus(columns, rows, {}) == ["h100-80gb", None]
    assert rows[0]["cluster"] == "h100-80gb"
    assert list(columns.skipped) == [1]
    assert "gpu=abacus" in columns.skipped[1]
