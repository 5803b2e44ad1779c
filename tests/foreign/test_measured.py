"""What became of a row of others, and how long its step took, by hand."""

import numpy as np
import pyarrow as pa
import pytest

from scaling.errors import InputError
from scaling.foreign.columns import Columns
from scaling.foreign.layouts import complete_layout, read_layout
from scaling.foreign.measured import read_outcomes, skip_adapter_training

LAYOUT = {"world_size": [8, 8], "global_batch_size": [64, 64], "seq_length": [1024, 1024]}


def columns_of(**columns):
    return Columns(pa.table(columns), "rows.csv")


@pytest.mark.parametrize(
    ("rate", "per_step"),
    [
        ("tokens_per_s", 64 * 1024),
        ("tokens_per_s_per_gpu", 64 * 1024 / 8),
        ("samples_per_s", 64),
        ("steps_per_s", 1),
    ],
)
def test_a_rate_says_what_a_step_took_and_that_it_ran(rate, per_step):
    outcome, step = read_outcomes(columns_of(**LAYOUT, **{rate: [2.0, None]}))
    assert outcome.tolist() == ["ok", ""]
    assert step[0] == per_step / 2
    assert np.isnan(step[1])


def test_a_step_time_goes_before_a_rate_and_words_for_no_memory_are_an_outcome():
    outcome, step = read_outcomes(
        columns_of(**LAYOUT, step_time_s=["3.0", "OOM"], tokens_per_s=[1.0, None])
    )
    assert outcome.tolist() == ["ok", "oom"]
    assert step[0] == 3.0


@pytest.mark.parametrize("name", ["step_time_s", "tokens_per_s", "peak_memory_bytes", "mfu (%)"])
@pytest.mark.parametrize(
    ("cell", "failure"),
    [
        ("crashed", "error"),
        ("Failed", "error"),
        ("Killed at step 12", "error"),
        ("did not run", "error"),
        ("CUDA out of memory", "oom"),
        ("OOM (> 80 GB)", "oom"),
        ("does not fit", "oom"),
        ("doesn't fit", "oom"),
        ("timeout", "timeout"),
        ("timed out", "timeout"),
        ("hung", "hang"),
        ("tbd", ""),
        ("not measured", ""),
        ("n.a.", ""),
    ],
)
def test_a_word_in_place_of_a_measurement_is_what_became_of_its_row(name, cell, failure):
    columns = columns_of(**LAYOUT, **{name: ["41", cell]})
    outcome, step = read_outcomes(columns)
    assert outcome[1] == failure
    assert np.isnan(step[1])
    if not failure and name != "mfu (%)":
        columns.numbers(name)
        said = [f"{name} is read as not measured in 1 rows: {cell}"]
        assert columns.assumptions == said


def test_one_remark_counts_the_cells_that_were_not_measured():
    cells = ["3.0", "tbd", "pending", "tbd"]
    columns = columns_of(
        **{name: [*cells, *cells] for name, cells in LAYOUT.items()}, step_time_s=cells
    )
    assert read_outcomes(columns)[0].tolist() == ["ok", "", "", ""]
    assert columns.assumptions == ["step_time_s is read as not measured in 3 rows: tbd"]


def test_a_step_time_with_other_digits_is_refused_and_a_row_that_ran_did_not_fail():
    with pytest.raises(InputError, match="step_time_s='1:30': must be a number"):
        read_outcomes(columns_of(**LAYOUT, step_time_s=["1.0", "1:30"]))
    outcome, _ = read_outcomes(
        columns_of(**LAYOUT, step_time_s=[1.0, None], peak_memory_bytes=["failed", "failed"])
    )
    assert outcome.tolist() == ["ok", "error"]


def test_rows_that_train_adapters_are_left_out_and_a_table_of_nothing_else_is_refused():
    columns = columns_of(model=["llama-8b", "llama-8b"], task=["pre-training", "LoRA"])
    skip_adapter_training(columns)
    assert list(columns.skipped) == [1]
    with pytest.raises(InputError, match="tunes a few weights"):
        skip_adapter_training(columns_of(model=["llama-8b"], task=["QLoRA"]))


@pytest.mark.parametrize(
    ("batch", "more", "sequences"),
    [
        ([256, 512], {}, [256, 512]),  # 16 and 32 replicas can share it
        ([4, 4], {}, [64, 128]),  # they cannot: each has its own
        ([256, 512], {"micro_batch_size": [2, 2]}, [256, 512]),
        ([2, 2], {"global_batch_size": [256, 512]}, [256, 512]),
    ],
)
def test_a_batch_size_is_that_of_all_ranks_where_they_can_share_it(batch, more, sequences):
    columns = columns_of(
        world_size=[32, 64], tp=[2, 2], pp=[1, 1], cp=[1, 1], batch_size=batch, **more
    )
    stated = read_layout(columns)
    stated["gradient_accumulation_steps"] = np.where(
        np.isnan(stated["global_batch_size"]), 1.0, stated["gradient_accumulation_steps"]
    )
    assert complete_layout(stated)["global_batch_size"].tolist() == sequences
    said = any("batch_size is read as" in sentence for sentence in columns.assumptions)
    assert said == ("global_batch_size" not in more)
