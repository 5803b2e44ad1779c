"""Sentences are computed from the tables, and say so when the tables cannot carry them."""

import dataclasses

import pytest

from scaling.analyse.warehouse import tabulate
from scaling.record.files import write_points, write_rows
from scaling.report.sections.sentences import evidence, story
from scaling.report.tables import Tables, read_tables
from scaling.study.grid import Plan
from tests.analyse.conftest import layout, some_point
from tests.report.conftest import REPORTS
from tests.report.synthetic_study import cpu_plan, gpu_plan, measured, point, row, timed_row

pytestmark = pytest.mark.slow


@pytest.fixture
def told(tmp_path):
    """The story of the only setting of a few rows."""

    def run(points, rows=(), refusals=()):
        write_points(tmp_path, Plan(points=tuple(points), refusals=tuple(refusals)))
        for one in rows:
            write_rows(tmp_path / "rows" / f"{one.point_id}.parquet", [one])
        tabulate(tmp_path, REPORTS / "sql")
        tables = read_tables(tmp_path)
        return story(tables.of(1))

    return run


def text(told):
    return told["answer"]


def curve(seconds, *, noise=0.001, **choices):
    """Points and rows of one layout at 1, 2, 4, ... GPUs with these step times."""
    points = [some_point(2**step, **choices) for step in range(len(seconds))]
    return points, [timed_row(p, t, noise=noise) for p, t in zip(points, seconds, strict=True)]


def test_the_answer_names_layouts_sizes_and_the_last_return(told):
    points, rows = curve([8.0, 5.0, 2.5])
    other = some_point(4, zero_stage=3)
    said = told([*points, other], [*rows, timed_row(other, 2.0, noise=0.001)])
    assert text(said) == (
        "Measured: plain data parallelism, ZeRO-1 up to 2 GPUs, then ZeRO-3. "
        "The last doubling buys its money's worth."
    )
    assert said["advice"]["headline"]["tags"] == [["ZeRO 1", "1–2 GPUs"], ["ZeRO 3", "4 GPUs"]]
    assert said["advice"]["steps"][-1]["returned"] == pytest.approx(1.5)


def test_falling_throughput_is_called_falling(told):
    said = told(*curve([8.0, 4.0, 5.0]))
    assert text(said).endswith("The last doubling makes training slower.")
    assert said["titles"]["returns"] == "After 2 GPUs more GPUs make training slower"
    assert said["titles"]["throughput"] == (
        "From 1 to 4 GPUs (4×) throughput grows 1.6×, from 128 tokens/s; it is highest at 2"
    )


def test_a_tie_is_called_a_tie(told):
    one, other = some_point(2), some_point(2, zero_stage=3)
    said = told([one, other], [timed_row(one, 2.0, noise=0.02), timed_row(other, 2.01, noise=0.02)])
    assert said["at_size"]["2"]["layouts"] == (
        "At 2 GPUs ZeRO 1 is advised and ZeRO 3 is not told apart from it"
    )
    assert "at 2 GPUs the two fastest layouts are not told apart: a tie." in said["note"]


def test_a_clear_winner_is_said_to_lead(told):
    one, other = some_point(2), some_point(2, zero_stage=3)
    said = told([one, other], [timed_row(one, 2.0), timed_row(other, 3.0)])
    assert said["at_size"]["2"]["layouts"] == "At 2 GPUs ZeRO 1 is fastest, 50.0\u202f% ahead"
    assert "told apart" not in said["note"]


def test_one_size_carries_no_return(told):
    said = told(*curve([8.0]))
    assert text(said).endswith("on 1 GPU. Only one size ran: no return.")
    assert said["titles"]["returns"] == "Only one size ran: no return of a step"


def test_a_study_that_has_not_run_says_so(told):
    said = told([some_point(1), some_point(2)])
    assert text(said) == "Nothing has run yet: 2 points wait."
    assert said["titles"]["statistics"] == "0 of 2 points ran and 2 have not run yet"


def test_a_study_in_which_nothing_fits_says_so(told):
    points = [some_point(1), some_point(2)]
    said = told(points, [row(one, "oom") for one in points])
    assert text(said) == "No layout ran: 2 of 2 points failed."
    assert said["at_size"]["2"]["layouts"] == "At 2 GPUs nothing that was tried ran"


def test_sizes_below_the_first_that_fits_are_named(told):
    points, rows = curve([8.0, 4.0])
    said = told(points, [row(points[0], "oom"), rows[1]])
    assert "Below 2 GPUs no layout tried ran." in said["note"]


def test_a_starved_smallest_size_is_no_yardstick_in_silence(told):
    said = told(*curve([8.0, 2.0]))
    assert "poor yardstick" in said["note"]


def test_a_cpu_has_ranks_and_no_mfu(told):
    points = [point(layout(size), model="tiny", cluster="here", gpu="cpu") for size in (1, 2)]
    said = told(points, [timed_row(one, 2.0) for one in points])
    assert text(said).endswith("up to 2 ranks. The last doubling buys nothing.")
    assert "not about GPUs" in said["note"]
    assert not any("MFU" in name for name, _, _ in said["figures"])


def test_partial_sweeps_warn_that_the_fastest_may_change(told):
    points, rows = curve([8.0, 4.0])
    said = told(points, rows[:1])
    assert "1 point has not run yet, so the fastest may change." in said["note"]


def test_stacks_that_differ_between_sizes_are_said_to_differ(told):
    points, _ = curve([8.0, 4.0])
    rows = [timed_row(points[0], 8.0), timed_row(points[1], 4.0, stack_fingerprint="other")]
    assert "2 software stacks" in told(points, rows)["note"]


def test_sentences_stand_on_measured_rows_and_never_mix_in_published_or_predicted_ones():
    rows = [{"series": series} for series in ("published", "measured", "predicted")]
    tables = Tables({"contenders": rows, "returns": rows[:1], "settings": [{"model": "m"}]})
    kept = evidence(tables)
    assert kept["contenders"] == [{"series": "measured"}]
    assert kept["returns"] == []
    assert kept["settings"] == [{"model": "m"}]
    alone = Tables({"contenders": rows[:1], "returns": rows[:1]})
    assert evidence(alone)["returns"] == rows[:1]


@pytest.mark.parametrize("plan", [gpu_plan, cpu_plan])
def test_every_setting_of_a_large_study_has_its_story(tmp_path, plan):
    made = plan()
    write_points(tmp_path, made)
    write_rows(tmp_path / "rows" / "all.parquet", list(measured(made.points)))
    tabulate(tmp_path, REPORTS / "sql")
    tables = read_tables(tmp_path)
    assert tables["settings"]
    for setting in tables["settings"]:
        said = story(tables.of(setting["setting_id"]))
        assert text(said).startswith("Measured: ")
        assert len(said["figures"]) in (6, 7)
        assert "{" not in str(said["note"])


def test_one_layout_is_no_choice_and_one_cell_no_map(told):
    said = told(*curve([8.0, 4.0]))
    assert "Choice of layout" not in [name for name, _, _ in said["figures"]]
    assert said["at_size"]["2"]["map"] == ""


def test_noise_of_one_repeated_layout_is_neither_plural_nor_zero(told):
    points = [some_point(1), dataclasses.replace(some_point(1), point_id="again", repeat=1)]
    rows = [timed_row(one, s) for one, s in zip(points, (8.0, 8.002), strict=True)]
    noise = next(figure for figure in told(points, rows)["figures"] if figure[0] == "Noise")
    assert noise[1] != "±0.0\u202f%"
    assert noise[2] == "between repeats of 1 layout"
