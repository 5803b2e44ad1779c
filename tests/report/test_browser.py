"""The page in a real browser: it draws, answers to the reader, and asks nobody for anything."""

import dataclasses
import itertools
import re
from pathlib import Path

import pytest

from scaling.analyse.warehouse import tabulate
from scaling.record.files import write_rows
from scaling.report import text as report_text
from scaling.report.charts.charts import CHARTS
from scaling.report.page.page import write_report
from tests.report.conftest import REPORTS, tabulated
from tests.report.synthetic_study import cpu_plan, gpu_plan, timed_row

pytestmark = pytest.mark.browser


# of each axis of each chart the labels that can be seen, with their boxes
AXES = """() => [...document.querySelectorAll('figure[data-chart]')].filter(f => f.offsetWidth)
  .flatMap(figure => [...figure.querySelectorAll('.role-axis')].map(axis =>
    [figure.dataset.chart, [...axis.querySelectorAll('.role-axis-label text')]
      .filter(text => text.textContent && getComputedStyle(text).opacity !== '0')
      .map(text => { const b = text.getBoundingClientRect();
        return [text.textContent, b.x, b.y, b.width, b.height]; })]))
  .filter(([, labels]) => labels.length)"""


def drawn(page):
    """Charts that can be seen, with the number of marks in each."""
    return page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('figure[data-chart]')]
        .filter(figure => figure.offsetWidth)
        .map(figure => [figure.dataset.chart, figure.querySelectorAll('svg path, svg text').length])
        )"""
    )


@pytest.fixture
def seen(full_study, looked_at):
    """The report of `full_study` as it opens."""
    return looked_at(full_study / "report.html")


@pytest.fixture
def narrow(full_study, looked_at):
    """Its page of one model on a telephone."""
    size = {"width": 400, "height": 860}
    return looked_at(full_study / "report.html", viewport=size, fragment="#model=llama-8b").page


@pytest.fixture(scope="module")
def hostile(tmp_path_factory, looked_at):
    """The report of one model, whose name is a program."""
    name = (
        "<script>document.title='x'</script><img src=x onerror='document.title=\"y\"'>\u202e\nline"
    )
    plan = gpu_plan(axes={"tp": (1, 2)}, models=("llama-8b",))
    points = [dataclasses.replace(point, model=name) for point in plan.points]
    renamed = dataclasses.replace(plan, points=points, refusals=())
    study = tabulated(tmp_path_factory.mktemp("hostile") / "study", renamed)
    return looked_at(write_report(study, REPORTS, charts=False))


def test_every_chart_is_drawn_and_nothing_is_asked_for(seen):
    report = seen
    assert drawn(report.page).keys() == {
        "throughput_per_gpu", "marginal_return", "memory", "layout_ranking", "factor_effects",
    }  # fmt: skip
    report.page.click("#not-shown summary")
    named = dict(
        line.split(": ") for line in report.page.locator("#not-shown li").all_inner_texts()
    )
    assert named["collectives"] == "no probe of this cluster has left data in this study."
    assert named["collectives"].startswith("no probe of this cluster")
    assert named.keys() | {name.replace("_", " ") for name in drawn(report.page)} == {
        name.replace("_", " ") for name in CHARTS
    }
    for place in ("time", "accuracy", "collectives", "peers"):  # nothing to see, no place, no link
        assert not report.page.is_visible(f"#{place}")
        assert not report.page.is_visible(f".rail a[href='#{place}']")
    assert report.page.locator(".empty:visible").count() == 0
    assert min(drawn(report.page).values()) > 10
    assert report.errors == []
    assert report.requests == []


@pytest.mark.parametrize("width", [400, 760, 1440])
def test_the_page_fits_its_window_and_answer_and_decision_stand_on_the_first_screen(
    full_study, looked_at, width
):
    height = 860 if width < 500 else 900
    size = {"width": width, "height": height}
    page = looked_at(full_study / "report.html", viewport=size, fragment="#model=llama-8b").page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert width < 1000 or page.evaluate("document.documentElement.scrollHeight") < 8000
    answer = page.locator(".selection:visible h2")
    assert answer.count() == 1
    assert answer.inner_text().startswith("Measured: ")
    assert answer.evaluate("e => parseFloat(getComputedStyle(e).fontSize)") >= 19
    table = page.locator(".decision:visible")
    assert table.locator("th[data-size]").all_inner_texts() == ["1", "2", "4", "8"]
    assert table.locator(".cell.advised").count() > 0
    box = table.locator("tbody").first.bounding_box()
    assert box["y"] + box["height"] < height


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 400)])
def test_axe_finds_nothing_in_the_theme_of_the_system(full, theme, width):
    from axe_playwright_python.sync_playwright import Axe

    page = full(color_scheme=theme, viewport={"width": width + 40, "height": 900}).page
    assert page.get_attribute("html", "data-theme") == theme
    page.set_viewport_size({"width": width, "height": 900})  # charts are drawn anew
    page.wait_for_function(
        "width => document.querySelector('figure svg').getBoundingClientRect().right <= width",
        arg=width,
    )
    assert [
        (violation["id"], [node["html"] for node in violation["nodes"]])
        for violation in Axe().run(page).response["violations"]
    ] == []


def test_every_axis_has_two_labels_and_none_lies_on_another(narrow):
    axes = narrow.evaluate(AXES)
    assert len(axes) >= 5
    for name, labels in axes:
        assert len(labels) >= 2, name
        assert not any("8388608" in text for text, *_ in labels), name
        for (_, x, y, w, h), (text, x2, y2, w2, h2) in itertools.combinations(labels, 2):
            assert not (x < x2 + w2 and x2 < x + w and y < y2 + h2 and y2 < y + h), (name, text)


# what is wider than its cell of the decision, and numbers of a chart that touch
TOUCHING = """() => [
  ...[...document.querySelectorAll('.selection:not([hidden]) .decision td')]
    .filter(cell => cell.scrollWidth > cell.clientWidth + 1).map(cell => cell.textContent),
  ...(texts => texts.flatMap((one, i) => texts.slice(i + 1).filter(two =>
      Math.abs(one.y - two.y) < 8 && one.x + 5 < two.right && two.x + 5 < one.right)))(
    [...document.querySelectorAll('figure[data-chart=throughput_per_gpu] .mark-text text')]
      .filter(text => text.getAttribute('stroke') == null && text.getAttribute('opacity') !== '0')
      .map(text => text.getBoundingClientRect())),
]"""


def test_nine_sizes_fit_a_phone(reported, opened):
    sizes = tuple(2**power for power in range(9))
    plan = gpu_plan(
        models=("llama-1b",), sizes=sizes, axes={"tp": (1,)}, repeats=1, global_batch_size=256
    )
    page = opened(reported(plan), viewport={"width": 400, "height": 860}).page
    assert page.locator(".decision:visible th[data-size]").count() == 9
    assert page.evaluate(TOUCHING) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_another_model_redraws_everything(full):
    report = full()
    before = report.page.inner_text(".selection:visible h2")
    report.select("model", "llama-8b")
    assert report.page.inner_text(".selection:visible h2") != before
    assert "GPUs" in report.page.text_content("figure[data-chart=throughput_per_gpu] svg")
    assert "model=llama-8b" in report.page.url
    assert report.errors == []


def test_the_theme_switch_changes_page_and_charts(full):
    page = full(color_scheme="light").page
    surface = "getComputedStyle(document.querySelector('#throughput')).backgroundColor"
    first = "document.querySelector('figure[data-chart=throughput_per_gpu] svg path[fill*=c1]')"
    mark = f"getComputedStyle({first}).fill"
    light = page.evaluate(surface), page.evaluate(mark)
    page.click("#theme")
    assert page.evaluate(surface) != light[0]
    assert page.evaluate(mark) != light[1]


def test_paper_shows_every_decision_and_no_controls(full):
    page = full().page
    page.emulate_media(media="print")
    assert page.locator("button:visible, input:visible, nav:visible").count() == 0
    assert page.locator(".selection:visible h2").count() == 3
    assert page.locator(".decision:visible").count() == 3
    assert page.locator("tr[data-sum=cost]:visible").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


@pytest.mark.parametrize(
    ("models", "decisions", "axes"),
    [
        (12, 12, {"tp": (1, 2), "zero_stage": (0, 1, 3), "engine": ("deepspeed", "torch")}),
        (50, 1, {"tp": (1,)}),
    ],
)
def test_selections_however_many_take_at_most_six_pages_of_paper(
    reported, opened, models, decisions, axes
):
    names = tuple(f"model-{number}" for number in range(models))
    page = opened(reported(cpu_plan(models=names, axes=axes, sizes=(1, 2)))).page
    paper = page.pdf(prefer_css_page_size=True)
    assert 1 < len(re.findall(rb"/Type\s*/Page[^s]", paper)) <= 6
    page.emulate_media(media="print")
    assert page.locator(".decision:visible").count() == decisions
    assert page.locator(".overview tbody tr:visible").count() == models
    assert not page.is_visible("#engines")
    notes = page.locator(".note:visible").all_inner_texts()
    # what stands beneath a selection is not said once more beneath the next
    assert all(one != other for one, other in itertools.pairwise(notes))
    table, method = (page.locator(at).bounding_box() for at in (".overview", "#method"))
    assert table["y"] + table["height"] <= method["y"]  # nothing is cut, and nothing overlaps


def test_the_overview_says_of_each_selection_what_its_headline_says(seen):
    page = seen.page
    headlines = page.locator(".selection h2").all_text_contents()
    layouts = page.locator(".overview .choose").all_inner_texts()
    assert len(layouts) == len(headlines) == 3
    for layout, headline in zip(layouts, headlines, strict=True):
        assert headline.startswith(f"Measured: {layout}. ")
    assert page.inner_text("#overview h2").startswith("3 selections, all measured: ")


def test_every_chart_interval_and_control_is_named(seen):
    page = seen.page
    charts = page.locator(".chart [role=graphics-document]").all()
    assert len(charts) == len(drawn(page))
    for chart in charts:
        assert re.fullmatch(r".{40,}\.", chart.get_attribute("aria-label"))
    names = page.evaluate(
        """[...document.querySelectorAll('button, input')]
        .map(control => control.textContent.trim() || control.getAttribute('aria-label') ||
        control.labels?.[0]?.textContent)"""
    )
    assert all(names)
    for chart in ("layout_ranking", "marginal_return"):
        caption = page.inner_text(f"figure[data-chart={chart}] figcaption")
        assert "95\u202f% interval" in caption
        assert "{" not in caption


def test_a_study_that_has_not_run_opens_without_charts_or_errors(reported, opened):
    report = opened(reported(gpu_plan(sizes=(1, 2)), ran=0.0))
    assert report.page.inner_text(".selection:visible h2").startswith("No point has a result yet")
    assert not report.page.is_visible(".reading")
    assert report.page.is_visible("#partial")
    assert drawn(report.page) == {}
    assert not report.page.is_visible("#budget")
    assert report.errors == []


def test_one_model_on_one_cluster_has_no_selectors(hostile):
    for group in ("model", "cluster", "batch"):
        assert not hostile.page.is_visible(f"#pick-{group}")


def test_batches_of_one_model_are_chosen_apart(reported, opened):
    strong = gpu_plan(models=("llama-1b",), sizes=(1, 2), repeats=1)
    weak = gpu_plan(
        models=("llama-1b",), sizes=(1, 2), repeats=1, study_kind="weak", global_batch_size=8
    )
    report = opened(reported(strong, weak))
    options = report.page.locator("#pick-batch button").all_inner_texts()
    assert options == ["strong 64 × 4096", "weak 8 × 4096"]
    report.select("batch", "weak 8 × 4096")
    assert "Weak scaling: 8 sequences" in report.page.inner_text(".selection:visible .kind")
    assert report.page.is_visible(".selection:visible tr[data-sum=steps]")
    assert report.page.is_visible(".selection:visible .warning")


def test_batches_that_do_not_fit_a_line_are_wrapped_and_not_hidden(reported, opened):
    plans = [
        gpu_plan(
            models=("llama-1b",), sizes=(1, 2), axes={"tp": (1,)}, repeats=1,
            global_batch_size=64 * 2**power,
        )
        for power in range(6)
    ]  # fmt: skip
    page = opened(reported(*plans), viewport={"width": 900, "height": 900}).page
    ends = page.locator("#pick-batch button").evaluate_all(
        "buttons => buttons.map(button => button.getBoundingClientRect().right)"
    )
    assert len(ends) == 6
    assert max(ends) <= 900


def test_without_javascript_answers_and_rows_are_readable(full_study, opened):
    page = opened(full_study / "report.html", java_script_enabled=False).page
    answers = page.locator("h2.big:visible").all_inner_texts()
    assert [answer[:9] for answer in answers] == ["Measured:"] * 3
    assert page.locator("tbody tr:visible").count() > 100
    pictures = page.locator("noscript img:visible, figure img:visible")
    assert pictures.count() >= 5
    assert all(picture.evaluate("e => e.naturalWidth") > 300 for picture in pictures.all())
    dead = page.locator("input:visible, select:visible, nav:visible, button:visible")
    assert dead.count() == 0


def test_a_changed_number_format_reaches_sentences_and_page_alike(reported, opened, monkeypatch):
    formats = {"unknown": "?", "prefixes": [[1e3, 1e3, " kilo"]], "digits": 2}
    for name, value in formats.items():
        monkeypatch.setitem(report_text.FORMATS, name, value)
    page = opened(reported(gpu_plan(axes={"tp": (1, 2)}))).page
    rates = page.locator("#points tbody tr:not(.fail):not(.wait)").first.inner_text()
    assert " kilo" in rates
    assert " kilo" in page.inner_text("#figures")


def test_a_model_with_a_hostile_name_is_text_everywhere(hostile):
    text = hostile.page.inner_text("body")
    assert "<script>document.title='x'</script><img src=x onerror=" in text
    assert "\\u202e line" in text
    assert "\u202e" not in text
    assert hostile.page.title().startswith("Scaling report")
    assert hostile.errors == []
    assert hostile.requests == []


FAULTS = Path(__file__).with_name("screens.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [1440, 400])
def test_no_words_of_a_chart_lie_on_one_another(tmp_path, opened, width):
    """Ranks that share cores: a third of the ideal, and the layout kept just behind the fastest."""
    plan = gpu_plan(
        models=("llama-1b",), sizes=(1, 2, 4), axes={"tp": (1, 2)}, repeats=1, global_batch_size=64
    )
    seconds = {(1, 1): 3.2, (1, 2): 2.9, (2, 2): 2.6, (1, 4): 2.7, (2, 4): 2.5}
    study = tabulated(tmp_path / "study", plan, ran=0.0)
    rows = [
        timed_row(point, seconds[point.layout.tp, point.layout.world_size], noise=0.002)
        for point in plan.points
    ]
    write_rows(study / "rows" / "all.parquet", rows)
    tabulate(study, REPORTS / "sql")
    page = opened(
        write_report(study, REPORTS, charts=False), viewport={"width": width, "height": 900}
    ).page
    named = page.locator("figure[data-chart=throughput_per_gpu] text:text-is('one layout')")
    assert named.count() == 2  # and its halo
    assert page.evaluate(FAULTS, 10)["clash"] == []
    broken = """() => [...document.querySelectorAll('.whole')]
      .filter(e => e.getClientRects().length > 1).map(e => e.textContent)"""
    assert page.locator("h2.big .whole").first.inner_text() == "ZeRO-1"
    assert page.evaluate(broken) == []
