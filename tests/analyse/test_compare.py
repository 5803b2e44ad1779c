"""Two studies side by side: what differs beyond the noise, by hand."""

import dataclasses

import pytest

from scaling.analyse.compare import Side, compare
from scaling.errors import InputError
from scaling.record.files import write_points, write_rows
from scaling.record.row import Row
from scaling.report.page import comparison
from scaling.study.grid import Plan
from tests.analyse.conftest import SQL, read, some_point, tabulate_only
from tests.analyse.test_tables import ran
from tests.report.synthetic_study import row

pytestmark = pytest.mark.slow


@pytest.fixture
def study(tmp_path):
    def run(name, *rows, points):
        folder = tmp_path / name
        write_points(folder, Plan(points=tuple(points), refusals=()))
        write_rows(folder / "rows" / "all.parquet", rows)
        tabulate_only(folder, tmp_path / f"sql_{name}", "measurements", "comparison_groups")
        return folder

    return run


def verdicts(records):
    return {record["layout"].split()[0]: record["verdict"] for record in records}


def test_faster_slower_and_within_noise_are_told_apart(study):
    points = [some_point(1, zero_stage=stage) for stage in (0, 1, 2, 3)]
    before = study("a", *(ran(one, 100, noise=0.02) for one in points), points=points)
    rates = zip(points[:3], (110, 90, 101), strict=True)
    rows = [*(ran(one, rate, noise=0.02) for one, rate in rates), row(points[3], "oom")]
    after = study("b", *rows, points=points)
    found = compare(Side(before), Side(after), SQL)
    assert verdicts(found) == {
        "zero0": "faster", "zero1": "slower", "zero2": "within noise", "zero3": "outcome changed",
    }  # fmt: skip
    first = next(one for one in found if one["verdict"] == "faster")
    assert first["ratio"] == pytest.approx(1.1)
    assert 1 < first["ratio_low"] < 1.1 < first["ratio_high"] < 1.2
    assert first["same_stack"] is True


def test_difference_below_the_noise_of_runs_is_noise(study):
    points = [some_point(1, zero_stage=stage) for stage in (0, 1)]
    before = study("a", *(ran(one, 100, noise=0.001) for one in points), points=points)
    rates = zip(points, (101.5, 98.5), strict=True)
    after = study("b", *(ran(one, rate, noise=0.001) for one, rate in rates), points=points)
    assert set(verdicts(compare(Side(before), Side(after), SQL)).values()) == {"within noise"}


def test_a_disturbed_run_leaves_the_other_verdicts_as_they_are(study):
    points = [some_point(1, zero_stage=s, repeat=r) for s in (0, 1, 2, 3) for r in (0, 1)]
    wobble = [0.4, -0.4, -0.2, 0.2, 0.5, -0.5, 0.3, -0.3]
    before = [100 + change for change in wobble]
    after = [105 + change for change in wobble]
    after[2] /= 2
    one, other = [
        study(name, *(ran(*pair, noise=0.002) for pair in zip(points, rates, strict=True)),
              points=points)
        for name, rates in (("a", before), ("b", after))
    ]  # fmt: skip
    found = compare(Side(one), Side(other), SQL)
    assert verdicts(found) == {
        "zero0": "faster", "zero1": "within noise", "zero2": "faster", "zero3": "faster",
    }  # fmt: skip
    (wide,) = (record for record in found if record["verdict"] == "within noise")
    assert wide["ratio_low"] < 0.54 < 1.04 < wide["ratio_high"]


def test_studies_of_short_steps_are_compared_by_what_these_extend_to(study, capsys):
    point = some_point(1)
    times = [field.name for field in dataclasses.fields(Row) if field.name.startswith("step_time")]
    short = dict.fromkeys((*times, "losses")) | {
        "step_time_kind": "extended", "short_step_times_s": [0.2], "short_accumulations": [2],
    }  # fmt: skip

    def extended(seconds):
        ends = {"extended_low_s": 0.99 * seconds, "extended_high_s": 1.01 * seconds}
        return ran(point, 100, **short, **ends, extended_step_time_s=seconds)

    before = study("a", extended(1.0), points=[point])
    after = study("b", extended(0.8), points=[point])
    records = compare(Side(before), Side(after), SQL)
    assert [one["verdict"] for one in records] == ["faster"]
    comparison.show(records, as_json=False)
    assert "faster" in capsys.readouterr().out


def test_what_stands_on_one_side_only_is_new_or_gone(study):
    one, other = some_point(1, zero_stage=0), some_point(1, zero_stage=1)
    before = study("a", ran(one, 100), points=[one])
    after = study("b", ran(other, 100), points=[other])
    assert verdicts(compare(Side(before), Side(after), SQL)) == {"zero0": "gone", "zero1": "new"}


def test_a_side_where_nothing_was_measured_is_refused(study):
    point = some_point(1)
    measured = study("a", ran(point, 100), points=[point])
    with pytest.raises(InputError, match="b: no row was measured here"):
        compare(Side(measured), Side(study("b", points=[point])), SQL)
    with pytest.raises(InputError, match="a: no row was measured before 1999-01-01"):
        compare(Side(measured, until="1999-01-01"), Side(measured), SQL)


def test_two_dates_of_one_study_are_set_side_by_side(study):
    points = [some_point(1, repeat=repeat) for repeat in range(2)]
    rows = [
        ran(points[0], 100, noise=0.01, started_at="2026-11-01T00:00:00Z"),
        ran(points[1], 120, noise=0.01, started_at="2026-11-09T00:00:00Z"),
    ]
    both = study("a", *rows, points=points)
    (found,) = compare(Side(both, until="2026-11-05"), Side(both, since="2026-11-05"), SQL)
    assert (found["verdict"], found["ratio"]) == ("faster", pytest.approx(1.2))


def test_runs_of_two_software_stacks_are_not_averaged(study):
    points = [some_point(1, repeat=repeat) for repeat in range(3)]
    rows = [
        ran(points[0], 100), ran(points[1], 200, stack_fingerprint="new"),
        ran(points[2], 200, stack_fingerprint="new"),
    ]  # fmt: skip
    before = study("a", *rows, points=points)
    after = study("b", ran(points[0], 101), points=points)
    (found,) = compare(Side(before), Side(after), SQL)
    assert (found["before_tokens_per_s"], found["before_runs"]) == (pytest.approx(100), 1)
    assert found["same_stack"] is True
    (found,) = compare(Side(after), Side(before), SQL)
    assert found["after_tokens_per_s"] == pytest.approx(100)


def test_each_side_has_the_advice_of_its_report_and_a_change_is_said(study, tmp_path, capsys):
    points = [some_point(1, zero_stage=stage) for stage in (0, 1, 2)]
    sides = {}
    for name, rates in (("a", (100, 90, 80)), ("b", (90, 100, 80))):
        rows = [ran(one, rate, noise=0.001) for one, rate in zip(points, rates, strict=True)]
        sides[name] = study(name, *rows, points=points)
    found = compare(Side(sides["a"]), Side(sides["b"]), SQL)
    for side, folder in zip(("before", "after"), sides.values(), strict=True):
        told = {one["layout"] for one in found if one[f"{side}_advised"]}
        tabulate_only(folder, tmp_path / f"sizes_{side}", "sizes")
        assert told == {one["layout"] for one in read(folder / "tables" / "sizes.parquet")}
    comparison.show(found, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    after, before = points[1].layout.label, points[0].layout.label
    assert f"advised for tiny on 1 of h100: {after}, before {before}" in shown


def test_words_of_a_study_do_not_steer_the_terminal(capsys):
    words = {"model": "[i]\x1b[/b]", "cluster": "[bold]", "layout": "a\tb"}
    sides = ("outcome", "tokens_per_s", "advised")
    names = [f"{side}_{name}" for side in ("before", "after") for name in sides]
    record = (
        dict.fromkeys((*names, *comparison.SIZE, "ratio", "ratio_low", "ratio_high", "same_stack"))
        | words
        | {"world_size": 8, "verdict": "new"}
    )
    comparison.show([record], as_json=False)
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("[i]\\x1b[/b]", "[bold]", "a\\tb"))
    assert "\x1b[/b]" not in shown
