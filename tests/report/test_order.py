"""How far the order can be trusted: the page says odds, optimism, short steps, drift and stops."""

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from scaling.analyse.warehouse import tabulate
from scaling.record.files import write_points, write_rows
from scaling.record.row import Row
from scaling.report.columns import SENTENCE_COLUMNS
from scaling.report.page.page import write_report
from scaling.report.sections.study import order_section
from scaling.report.tables import Tables, read_tables
from scaling.study.grid import Plan
from scaling.study.point import Point
from tests.report.conftest import REPORTS, SMALL_AXES, Opened
from tests.report.synthetic_study import gpu_plan, in_short_steps, point, step_time_s, timed_row

pytestmark = pytest.mark.slow

STARTED = datetime.fromisoformat("2026-11-20T08:00:00+00:00")
SLOW_NODE = "node-3"


def short_row(point: Point, seconds: float, *, also_full: bool, **facts: object) -> Row:
    """A row of short steps, which are right to half a per cent; of some full ones ran too."""
    per = seconds / 30
    short = {
        "short_step_times_s": [2 * per, 4 * per, 6 * per] * 5,
        "short_accumulations": [2, 4, 6] * 5,
        "extended_step_time_s": seconds * 1.005,
        "extended_low_s": seconds * 0.998,
        "extended_high_s": seconds * 1.012,
        "extension_is_linear": True,
    }
    full = timed_row(point, seconds, step_time_kind="measured", **short, **facts)
    return full if also_full else in_short_steps(full)


def write_short_study(folder: Path) -> Path:
    """Short steps, repeats of the fastest two, a node that is slow, steps that stopped."""
    plan = gpu_plan(axes=SMALL_AXES)
    firsts = [p for p in plan.points if p.repeat == 0 and p.model == plan.points[0].model]
    rng, rows, points = random.Random(3), [], []
    by_size: dict[int, list[Point]] = {}
    for each in firsts:
        by_size.setdefault(each.world_size, []).append(each)
    for here in by_size.values():
        fastest = sorted(here, key=step_time_s)
        for place, each in enumerate(fastest):
            for repeat in range(3 if place < 2 else 1):
                again = point(each.layout, model=each.model, repeat=repeat)
                host = f"node-{rng.randrange(4)}"
                seconds = (
                    step_time_s(fastest[0]) * (1 + 0.004 * place) * rng.gauss(1, 0.002)
                    if place < 2
                    else step_time_s(each)
                ) * (1.06 if host == SLOW_NODE else 1)
                facts = {
                    "hosts": [host],
                    "started_at": (STARTED + timedelta(minutes=23 * len(rows))).isoformat(),
                    "stopped": "at_most" if len(rows) % 7 == 0 else "precise",
                }
                rows.append(short_row(again, seconds, also_full=not repeat and place < 2, **facts))
                points.append(again)
    write_points(folder, Plan(points=tuple(points), refusals=plan.refusals))
    write_rows(folder / "rows" / "all.parquet", rows)
    tabulate(folder, REPORTS / "sql")
    return folder


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_short_study(tmp_path_factory.mktemp("order") / "short")


def test_the_page_says_how_sure_the_order_is_and_what_was_tested(study: Path) -> None:
    html = write_report(study, REPORTS, charts=False).read_text()
    section = html.split('<section id="order">')[1].split("</section>")[0]
    for words in (
        "At no size compared is one layout the best with a probability above 95\u202f%</a>",
        "the short ones is off by 0.5\u202f% in the median and 0.5\u202f% at most",
        "its 80\u202f% interval holds the measured step in",
        "Drift: over ",
        f"runs on {SLOW_NODE} take ",
        "stopped once the median was precise enough",
        "reached the limit of steps before it was",
        "<th>probability</th>",
        "<th>optimism</th>",
    ):
        assert words in section, words
    assert section.count("<tr>") == 1 + len(order_section(read_tables(study))["sizes"])


@pytest.mark.browser
def test_the_table_of_points_states_the_level_of_each_interval(
    study: Path, opened: Callable[..., Opened]
) -> None:
    page = opened(write_report(study, REPORTS, charts=False)).page
    heads = "() => [...document.querySelectorAll('#points th')].map(head => head.textContent)"
    assert "± 95 or 80 %" in page.evaluate(heads)


def rows(**changes: object) -> dict[str, list[dict[str, object]]]:
    """The tables of a study of one size whose winner is beyond doubt."""
    tables: dict[str, list[dict[str, object]]] = {
        "settings": [{"setting_id": 1, "model": "m", "cluster": "c", "vendor": "nvidia"}],
        "optimism": [
            {
                "setting_id": 1, "series": "measured", "world_size": 8, "layout_name": "ZeRO 1",
                "layouts": 3, "runs": 3, "contenders": 0, "probability_of_winner": 0.99,
                "between_run_sigma": 0.007, "optimism": 0.0,
            }
        ],
        "contenders": [],
        "extension": [],
        "drift": [],
        "stops": [],
    }  # fmt: skip
    return tables | changes  # type: ignore[return-value]


def test_a_winner_beyond_doubt_is_called_one_and_nothing_is_said_of_what_was_not_tested() -> None:
    said = order_section(Tables(rows()))
    assert said is not None
    assert said["headline"] == (
        "At the only size compared one layout is the best with a probability above 95\u202f%"
    )
    assert said["notes"] == []


def test_releases_that_ran_the_same_size_are_told_apart_by_name() -> None:
    one = rows()["optimism"][0]
    names = ("published: Somebody 26.02", "published: Somebody 26.06")
    read = [
        {
            k: v
            for k, v in (one | {"stack_fingerprint": n}).items()
            if k in SENTENCE_COLUMNS["optimism"]
        }
        for n in names
    ]
    found = order_section(Tables(rows(optimism=read)))
    assert found is not None
    assert found["several"]
    assert [row["model"].rpartition(", ")[2] for row in found["sizes"]] == [
        "Somebody 26.02",
        "Somebody 26.06",
    ]


def test_no_drift_says_what_was_tested_and_a_point_on_no_line_is_counted() -> None:
    drift = [
        {"test": "time", "host": None, "residual_of": "repeats", "runs": 9, "effect": 0.01,
         "change": 0.01, "p_value": 0.4, "cluster": "c"}
    ]  # fmt: skip
    extension = [
        {"linear": False, "error": None, "covered": None},
        {"linear": True, "error": -0.02, "covered": True},
    ]
    said = order_section(Tables(rows(drift=drift, extension=extension)))
    assert said is not None
    assert said["notes"] == [
        "2 points ran full steps beside short ones: the step extended from the short ones is off "
        "by 2.0\u202f% in the median and 2.0\u202f% at most, and its 80\u202f% interval holds the "
        "measured step in 1 of 1. The short steps of 1 point lay on no line, so full steps were "
        "measured.",
        "No drift is seen: over 9 runs, each compared with the other runs of its layout, a step's "
        "time shows no dependence on time (shuffled residuals, p above 0.01).",
    ]


def test_a_drift_is_said_of_the_runs_and_where_there_are_several_of_its_cluster() -> None:
    time = {
        "test": "time", "host": None, "residual_of": "repeats", "runs": 9, "effect": None,
        "change": 0.05, "p_value": 0.0, "cluster": "a",
    }  # fmt: skip
    node = time | {"test": "node", "host": "n3", "effect": -0.1, "change": None}
    said = order_section(Tables(rows(drift=[time, node])))
    assert said is not None
    assert said["notes"] == [
        "Drift: over 9 runs, each compared with the other runs of its layout, steps become "
        "5.0\u202f% longer from the first run to the last (p 0.0005) and runs on n3 take "
        "10.0\u202f% shorter than elsewhere (p 0.0005)."
    ]
    several = order_section(Tables(rows(drift=[time, time | {"cluster": "b", "p_value": 0.5}])))
    assert several is not None
    assert "to the last on a (p 0.0005)." in several["notes"][0]


def test_what_only_predicts_has_no_such_section() -> None:
    assert order_section(Tables(rows(optimism=[]))) is None
