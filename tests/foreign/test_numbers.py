"""Numbers as tables write them, in the unit of our column."""

import math

import pytest

from scaling.foreign.numbers import parse_number


@pytest.mark.parametrize(
    ("column", "cell", "number"),
    [
        ("step_time_s", "123 ms", 0.123),
        ("step_time_s", "1,234 ms", 1.234),
        ("step_time_s", "12.3 ± 0.4", 12.3),
        ("step_time_s", "12.3 +/- 0.4", 12.3),
        ("step_time_s", "123 µs", 123e-6),
        ("step_time_s", "-5", -5),
        ("peak_memory_bytes", "39.5 GB", 39.5e9),
        ("peak_memory_bytes", "2GiB", 2**31),
        ("zero_stage", "stage 3", 3),
        ("zero_stage", "ZeRO-1", 1),
        ("seq_length", "8k", 8192),
        ("tokens_per_s", "12.1k", 12100),
        ("total_params", "8.86G", 8.86e9),
        ("tokens_per_step", "4M tokens", 4e6),
        ("seq_length", "4k tokens", 4096),
        ("world_size", "64 GPUs", 64),
        ("total_params", "70B", 70e9),
        ("global_batch_size", "1 024", 1024),
        ("peak_memory_bytes", "31508 (29789)", 31508),
        ("step_time_s", "12.3 s [11.9, 12.8]", 12.3),
        ("step_time_s", "431 (ms)", 0.431),
        ("step_time_s", "12.3*", 12.3),
    ],
)
def test_a_cell_is_a_number_in_the_unit_of_its_column(column, cell, number):
    assert parse_number(cell, column) == pytest.approx(number)


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("tp", "8 s"),
        ("tp", "8k"),
        ("step_time_s", "3 GB"),
        ("tp", "1_000_0"),
        ("steps_per_s", "2 s"),
        ("tp", "8 (s)"),
    ],
)
def test_a_unit_that_the_column_does_not_have_is_no_number(column, cell):
    with pytest.raises(ValueError, match=r"unit|1_000"):
        parse_number(cell, column)


def test_the_unit_of_a_cell_goes_before_that_of_the_header():
    assert parse_number("500", "step_time_s", 1e-3) == 0.5
    assert parse_number("0.5 s", "step_time_s", 1e-3) == 0.5
    assert math.isnan(parse_number("OOM", "step_time_s", 1e-3))
