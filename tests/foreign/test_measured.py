"""What became of a row of others, and how long its step took, by hand."""

import numpy as np
import pyarrow as pa
import pytest

from scaling.errors import InputError
from scaling.foreign.columns import Columns
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


def test_rows_that_train_adapters_are_left_out_and_a_table_of_nothing_else_is_refused():
    columns = columns_of(model=["llama-8b", "llama-8b"], task=["pre-training", "LoRA"])
    skip_adapter_training(columns)
    assert list(columns.skipped) == [1]
    with pytest.raises(InputError, match="tunes a few weights"):
        skip_adapter_training(columns_of(model=["llama-8b"], task=["QLoRA"]))
