"""What others wrote is printed as text, and an interval is called what it is."""

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scaling.analyse.series import SERIES
from scaling.report.charts.marks import POINTS
from scaling.report.sections.story import SERIES_KEY, interval_words
from scaling.report.tables import Tables, _plain, _read, page_text
from scaling.report.text import pieces, with_series


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("llama-8b", "llama-8b"),
        ("420\u202fk Größe 模型", "420\u202fk Größe 模型"),
        ("a\u202eb", "a\\u202eb"),
        ("two\nlines\tand\rmore", "two lines and more"),
        ("\x1b[31mred\x00", "\\u001b[31mred\\u0000"),
        ("<script>", "<script>"),
    ],
)
def test_control_characters_are_shown_as_numbers_and_words_stay(name, printed):
    assert page_text(name) == printed
    assert _plain([name, None]) == [printed, None]
    assert _plain([[name, None]]) == [printed]


def noise(series, repeated, layouts=4):
    width = 0.01
    return {"series": series, "interval_half_width": width, "layouts": layouts,
            "repeated_layouts": repeated}  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([noise("measured", 0)], "95\u202f% interval of one run"),
        ([noise("measured", 4)], "95\u202f% interval of repeats"),
        ([noise("measured", 1)], "95\u202f% interval of one run or repeats"),
        ([noise("predicted", 0)], "80\u202f% interval of a prediction"),
        (
            [noise("measured", 0), noise("predicted", 0)],
            "95\u202f% interval of one run or 80\u202f% interval of a prediction",
        ),
        ([noise("extended", 0)], "80\u202f% interval of a step extended from short ones"),
        ([], ""),
    ],
)
def test_an_interval_is_called_by_its_level_and_its_runs(rows, words):
    assert interval_words(Tables({"noise": rows})) == words


def test_every_series_has_its_mark_in_the_key_that_a_saved_chart_carries():
    assert set(SERIES_KEY) == set(SERIES) == set(POINTS)


@pytest.mark.parametrize(
    ("title", "series", "called_title"),
    [
        ("At 8 GPUs ZeRO 1 leads", "predicted", "Predicted: at 8 GPUs ZeRO 1 leads"),
        ("ZeRO 1 needs less memory", "published", "Published: ZeRO 1 needs less memory"),
        ("One step pays", "extended", "Measured in short steps: one step pays"),
        ("One step pays", "measured", "One step pays"),
        ("", "predicted", ""),
    ],
)
def test_a_title_says_what_its_values_are_unless_they_were_measured(title, series, called_title):
    assert with_series(title, series) == called_title


def test_where_several_series_are_shown_a_measured_title_says_so_too():
    said = with_series("One step pays", "measured", measured_too=True)
    assert said == "Measured: one step pays"
    assert with_series("Predicted: one step pays", "measured", measured_too=True).count(":") == 1


def test_rows_that_tie_keep_their_order_however_the_file_has_them(tmp_path):
    columns = ("setting_id", "tokens_per_s", "world_size", "layout_name", "repeat")
    rows = [
        {**dict.fromkeys(columns, 1), "series": series, "point_id": point}
        for series, point in (("measured", "b"), ("published", "a"), ("measured", "a"))
    ]
    read = []
    for number in (1, -1):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows[::number]), path)
        with duckdb.connect() as connection:
            read.append(_read(connection, path, "statistics", ("series", "point_id")))
    assert read[0] == read[1]


def test_no_line_may_end_inside_a_number_with_its_name_or_its_unit():
    sentence = (
        "tp 4, micro-batch 2 (ZeRO-1) up to 1\u202f024 GPUs, then tensor parallel 16 at 700 W"
    )
    whole = ["tp 4", "micro-batch 2", "ZeRO-1", "1\u202f024 GPUs", "tensor parallel 16", "700 W"]
    assert pieces(sentence)[1::2] == whole
    assert "".join(pieces(sentence)) == sentence
