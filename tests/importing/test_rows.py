"""Rows that others measured: taken as stated, completed by what follows, or refused."""

import pyarrow.parquet as pq
import pytest

from scaling.errors import InputError
from scaling.importing.rows import NEEDED, import_rows
from tests.analyse.conftest import PAPER_ROW, TINY
from tests.predict.reference import write_csv

pytestmark = pytest.mark.slow


@pytest.fixture
def published(tmp_path):
    """Imports PAPER_ROW with changes, and returns the rows of published.parquet."""

    def run(*changes, drop=(), **options):
        rows = [{k: v for k, v in (PAPER_ROW | one).items() if k not in drop} for one in changes]
        source = write_csv(tmp_path / "rows.csv", rows)
        run.table = import_rows(  # type: ignore[attr-defined]
            source, tmp_path / "study", {}, **options
        )
        return pq.read_table(tmp_path / "study" / "published.parquet").to_pylist()

    return run


@pytest.mark.parametrize("way", ["empty cells", "no such columns"])
def test_a_choice_that_a_source_does_not_state_stays_null(published, way):
    unsaid = ("micro_batch_size", "precision", "zero_stage", "attention")
    cells = dict.fromkeys(unsaid, "") if way == "empty cells" else {}
    (row,) = published(cells, drop=() if cells else unsaid)
    assert {row[name] for name in unsaid} == {None}
    assert (row["dp"], row["gradient_accumulation_steps"]) == (4, None)
    assert row["peak_flop_per_s"] is None


def test_replicas_accumulation_tokens_flops_and_gpu_follow(published):
    (row,) = published({})
    weights = 2 * (4 * 64 * 64 + 2 * 64 * 256) + 1000 * 64
    assert (row["dp"], row["gradient_accumulation_steps"]) == (4, 4)
    assert (row["tokens_per_step"], row["head_dim"]) == (32 * 128, 16)
    assert row["model_flops_per_token"] == 6 * weights + 12 * 2 * 64 * 128
    assert (row["gpu"], row["peak_flop_per_s"]) == ("a100-80gb", 312e12)
    assert (row["family"], row["attempt"], row["study_kind"]) == (None, 1, "strong")


def test_a_model_of_the_catalogue_gives_its_shape_and_its_name(published):
    shape = ("num_layers", "hidden_size", "num_heads", "vocab_size")
    (row,) = published({"model": "tiny_gpt"}, drop=shape, models={"tiny_gpt": TINY})
    assert (row["num_layers"], row["vocab_size"]) == (2, 1000)
    (row,) = published({"model": "another name"}, models={"tiny_gpt": TINY})
    assert row["model"] == "tiny_gpt"
    (row,) = published({"num_layers": "3"}, models={"tiny_gpt": TINY})
    assert row["model"] == "gpt"


@pytest.mark.parametrize("column", NEEDED)
def test_a_needed_column_or_cell_that_is_missing_is_named(published, column):
    with pytest.raises(InputError, match=f"column {column} is missing; needed are model, cluster"):
        published({}, drop=(column,))
    with pytest.raises(InputError, match=r"model, .*, outcome; ignored are theirs"):
        published({"theirs": "x"}, drop=(column,))
    with pytest.raises(InputError, match=rf"rows\.csv: row 2: {column} is empty, and is needed"):
        published({}, {column: ""})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"dp": "8"}, "world_size=8: is not tp x pp x cp x dp"),
        ({"world_size": "9"}, "world_size=9: is not tp x pp x cp x dp"),
        ({"dp": "", "tp": "16"}, "world_size=8: is not tp x pp x cp x dp"),
        ({"micro_batch_size": "", "global_batch_size": 2**53}, "tokens_per_step=.* at most"),
        ({"global_batch_size": "33"}, "global_batch_size=33: is not micro_batch_size x"),
        ({"step_time_s": "1e-9"}, "step_time_s=1e-09: would take more FLOP/s than"),
        ({"step_time_s": ""}, "outcome=ok without a step_time_s"),
        ({"outcome": "oom"}, "outcome=oom with step_time_s: only ok has numbers"),
    ],
)
def test_a_row_that_cannot_be_is_refused_with_its_place(published, changes, sentence):
    with pytest.raises(InputError, match=rf"rows\.csv: row 2: {sentence}"):
        published({"dp": "4"}, changes)
