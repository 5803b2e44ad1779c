"""Sentences are computed from the tables, and say so when the tables cannot carry them."""

import dataclasses
import itertools

import pytest

from scaling.analyse.warehouse import tabulate
from scaling.record.files import write_points, write_rows
from scaling.report.sections.story import main_series, story
from scaling.report.tables import Tables, read_tables
from scaling.study.grid import Plan
from tests.analyse.conftest import layout, some_point
from tests.report.conftest import REPORTS
from tests.report.synthetic_study import (
    cpu_plan,
    gpu_plan,
    in_short_steps,
    measured,
    point,
    row,
    timed_row,
)

pytestmark = pytest.mark.slow


# Points and rows of each test's setting, by the test's name, which is also the model's name.
STUDIES = {}


def of(make):
    """Give a test the story of the points and rows that `make` returns for a model name.

    The tests share one study with a setting each, because tabulating takes a second.
    """

    def decorated(test):
        STUDIES[test.__name__] = make(test.__name__)
        return test

    return decorated


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stories")
    points = [one for points, _ in STUDIES.values() for one in points]
    write_points(folder, Plan(points=tuple(points), refusals=()))
    write_rows(
        folder / "rows" / "all.parquet", [one for _, rows in STUDIES.values() for one in rows]
    )
    tabulate(folder, REPORTS / "sql")
    tables = read_tables(folder)
    return {one["model"]: story(tables.of(one["setting_id"])) for one in tables["settings"]}


@pytest.fixture
def told(stories, request):
    """The story of the test's own setting."""
    return stories[request.function.__name__]


def text(told):
    return told["answer"]


def curve(seconds, *, without=0, **choices):
    """Points of one layout at 1, 2, 4, ... GPUs, and rows with these step times.

    The last `without` points have not run.
    """

    def make(model):
        points = [some_point(2**step, model=model, **choices) for step in range(len(seconds))]
        rows = [timed_row(p, t, noise=0.001) for p, t in zip(points, seconds, strict=True)]
        return points, rows[: len(rows) - without]

    return make


def two_layouts(*seconds, noise=0.01):
    """ZeRO-1 and ZeRO-3 on two GPUs with these step times."""

    def make(model):
        points = [some_point(2, model=model, zero_stage=stage) for stage in (1, 3)]
        return points, [timed_row(p, t, noise=noise) for p, t in zip(points, seconds, strict=True)]

    return make


def overtaken(model):
    """ZeRO-1 up to two GPUs, then ZeRO-3."""
    points, rows = curve([8.0, 5.0, 2.5])(model)
    other = some_point(4, model=model, zero_stage=3)
    return [*points, other], [*rows, timed_row(other, 2.0, noise=0.001)]


@of(overtaken)
def test_the_answer_names_layouts_sizes_and_the_last_return(told):
    assert text(told) == (
        "Measured: plain data parallelism, ZeRO-1 up to 2 GPUs, then ZeRO-3. "
        "The last doubling makes training 2.5× as fast."
    )
    assert told["advice"]["headline"]["tags"] == [["ZeRO 1", "1–2 GPUs"], ["ZeRO 3", "4 GPUs"]]
    assert told["advice"]["steps"][-1]["returned"] == pytest.approx(1.5)


@of(curve([8.0, 4.0, 5.0]))
def test_falling_throughput_is_called_falling(told):
    assert text(told).endswith("The last doubling makes training slower.")
    assert told["titles"]["returns"] == "The step from 2 to 4 GPUs makes training slower"
    assert told["titles"]["throughput"] == (
        "From 1 to 4 GPUs (4×) throughput grows 1.6×, from 128 tokens/s; it is highest at 2"
    )


@of(two_layouts(2.0, 2.01, noise=0.02))
def test_a_tie_is_called_a_tie(told):
    assert told["at_size"]["2"]["layouts"] == (
        "At 2 GPUs ZeRO 1 is advised and ZeRO 3 is not told apart from it"
    )
    assert "At 2 GPUs the two fastest layouts tie: they are not told apart." in told["note"]


@of(two_layouts(2.0, 3.0))
def test_a_clear_winner_is_said_to_lead(told):
    assert told["at_size"]["2"]["layouts"] == "At 2 GPUs ZeRO 1 is fastest, 50.0\u202f% ahead"
    assert "the two fastest layouts" not in told["note"]


@of(curve([8.0]))
def test_one_size_carries_no_return(told):
    assert text(told).endswith("on 1 GPU. Only one size ran: scaling is not known.")
    assert told["titles"]["returns"] == "Only one size ran: no return of a step"


@of(curve([8.0, 4.0], without=2))
def test_a_study_that_has_not_run_says_so(told):
    assert text(told) == "No point has a result yet: 2 wait."
    assert told["titles"]["statistics"] == "0 of 2 points ran and 2 have no result yet"


def too_large(model):
    points = [some_point(size, model=model) for size in (1, 2)]
    return points, [row(one, "oom") for one in points]


@of(too_large)
def test_a_study_in_which_nothing_fits_says_so(told):
    assert text(told) == "No layout ran: 2 of 2 points failed (2 oom)."
    assert told["at_size"]["2"]["layouts"] == "At 2 GPUs nothing that was tried ran"


def too_large_for_one(model):
    points, rows = curve([8.0, 4.0])(model)
    return points, [row(points[0], "oom"), rows[1]]


def too_large_for_one_and_four(model):
    points, (_, ran, _) = curve([8.0, 4.0, 2.0])(model)
    return points, [row(points[0], "oom"), ran, row(points[2], "hang")]


@of(too_large_for_one_and_four)
def test_sizes_at_which_all_that_was_tried_failed_are_named(told):
    assert "At 1 and 4 GPUs no layout tried ran." in told["note"]


@of(too_large_for_one)
def test_a_size_at_which_nothing_fits_is_named(told):
    assert "At 1 GPU no layout tried ran." in told["note"]
    assert "full steps only" not in told["note"]
    assert "At no size did two layouts run, so the fastest is compared with none." in told["note"]


def short_and_full(model):
    points, [full, other] = curve([8.0, 4.0])(model)
    extended = {f"extended_{name}_s": s for name, s in (("step_time", 4), ("low", 3), ("high", 5))}
    full = dataclasses.replace(full, step_time_kind="measured")
    return points, [full, in_short_steps(other, **extended)]


@of(short_and_full)
def test_a_size_that_ran_in_full_only_is_ranked_with_the_extended_ones_and_said_to_be(told):
    assert text(told).startswith("Measured in short steps: ")
    assert "no layout tried ran" not in told["note"]
    assert "Layouts that ran full steps only" in told["note"]
    noise = next(figure for figure in told["figures"] if figure[0] == "Noise")
    assert noise[2] == "80\u202f% interval of an extended step"


@of(curve([8.0, 2.0]))
def test_a_starved_smallest_size_is_no_yardstick_in_silence(told):
    assert "poor yardstick" in told["note"]


def on_a_cpu(model):
    points = [point(layout(size), model=model, cluster="here", gpu="cpu") for size in (1, 2)]
    return points, [timed_row(one, 2.0) for one in points]


@of(on_a_cpu)
def test_a_cpu_has_ranks_and_no_mfu(told):
    assert text(told).endswith("up to 2 ranks. The last doubling makes training no faster.")
    assert "not about GPUs" in told["note"]
    assert not any("MFU" in name for name, _, _ in told["figures"])


@of(on_a_cpu)
def test_captions_are_silent_about_marks_that_a_selection_lacks(told):
    words = told["words"]
    assert words["used"] == "FLOP/s, then its "
    assert words["memory_marks"] == "A tick is the measured peak of the fullest rank."
    assert words["cost"] == "Rank-hours of the run"


def without_intervals(model):
    points, rows = curve([8.0, 4.0])(model)
    unstated = {"step_time_low_s": None, "step_time_high_s": None}
    return points, [dataclasses.replace(one, **unstated) for one in rows]


@of(without_intervals)
def test_captions_are_silent_about_intervals_that_nobody_states(told):
    assert told["words"]["shaded"] == told["words"]["band"] == ""


@of(curve([8.0, 4.0]))
def test_captions_explain_the_marks_that_a_selection_has(told):
    assert told["words"]["used"] == "MFU, then its "
    assert told["words"]["memory_marks"].endswith("Red line: the memory of one GPU.")


def one_of_three_fits(model):
    points = [some_point(2, model=model, zero_stage=stage) for stage in (1, 2, 3)]
    return points, [timed_row(points[2], 2.0), *(row(one, "oom") for one in points[:2])]


@of(one_of_three_fits)
def test_layouts_that_the_decision_leaves_out_because_they_failed_are_counted(told):
    assert [one["name"] for one in told["advice"]["layouts"]] == ["ZeRO 3"]
    assert "2 more layouts ran at no size." in told["note"]


def a_hundred(model):
    """Of a hundred layouts seventy run at one speed."""
    flags = ("fused_norm", "fused_rope", "fused_mlp", "fused_cross_entropy", "compile")
    points = [
        some_point(1, model=model, zero_stage=stage, **dict(zip(flags, chosen, strict=True)))
        for stage, *chosen in itertools.product((0, 1, 2, 3), *[(False, True)] * len(flags))
    ][:100]
    return points, [timed_row(p, 1.0) if n < 70 else row(p, "oom") for n, p in enumerate(points)]


@of(a_hundred)
def test_more_layouts_than_the_page_lists_are_counted_all(told):
    assert "30 more layouts ran at no size." in told["note"]
    assert "69 other layouts are not told apart from it" in told["at_size"]["1"]["layouts"]


@of(curve([8.0, 4.0], without=1))
def test_partial_sweeps_warn_that_the_fastest_may_change(told):
    assert "1 point has no result yet, so the fastest may change." in told["note"]


def of_two_stacks(model):
    points, _ = curve([8.0, 4.0])(model)
    others = timed_row(points[1], 4.0, stack_fingerprint="other")
    return points, [timed_row(points[0], 8.0), others]


@of(of_two_stacks)
def test_stacks_that_differ_between_sizes_are_said_to_differ(told):
    assert "2 software stacks" in told["note"]


def test_sentences_stand_on_measured_rows_and_never_mix_in_published_or_predicted_ones():
    rows = [
        {"series": series, "outcome": "ok"} for series in ("published", "measured", "predicted")
    ]
    tables = Tables(
        {"contenders": rows, "returns": rows[:1], "settings": [{"setting_id": 1, "cluster": "c"}]}
    )
    kept = tables.of(1, main_series(tables))
    assert kept["contenders"] == [{"series": "measured", "outcome": "ok"}]
    assert kept["returns"] == []
    assert kept["settings"] == [{"setting_id": 1, "cluster": "c"}]
    alone = Tables({"contenders": rows[:1], "returns": rows[:1]})
    assert alone.of(1, main_series(alone))["returns"] == rows[:1]
    failed = {"series": "measured", "outcome": "oom"}
    assert main_series(Tables({"contenders": [failed, rows[0]]})) == "published"
    assert main_series(Tables({"contenders": [failed, rows[2]]})) == "measured"


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


@of(curve([8.0, 4.0]))
def test_one_layout_is_no_choice(told):
    assert "Choice of layout" not in [name for name, _, _ in told["figures"]]


def repeated(model):
    first = some_point(1, model=model)
    points = [first, dataclasses.replace(first, point_id=f"{model}-again", repeat=1)]
    return points, [timed_row(one, s) for one, s in zip(points, (8.0, 8.002), strict=True)]


@of(repeated)
def test_noise_of_one_repeated_layout_is_neither_plural_nor_zero(told):
    noise = next(figure for figure in told["figures"] if figure[0] == "Noise")
    assert noise[1] != "±0.0\u202f%"
    assert noise[2] == "between repeats of 1 layout"


@pytest.mark.parametrize(("parameters", "tokens"), [(None, 1e12), (5, 100)])
def test_a_model_of_unknown_size_is_priced_for_a_stated_number_of_tokens(
    full_tables, parameters, tokens
):
    one = full_tables.of(1)
    settings = [row | {"total_params": parameters} for row in one["settings"]]
    assert story(Tables(one.records | {"settings": settings}))["tokens"] == tokens
