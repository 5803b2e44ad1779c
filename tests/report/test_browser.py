"""The page in a real browser: it draws, answers to the reader, and asks nobody for anything."""

import csv
import dataclasses
import re
import xml.etree.ElementTree as ElementTree

import pytest

from scaling.report.page.page import write_report
from scaling.report.text import numbers
from tests.report.conftest import REPORTS, tabulated
from tests.report.synthetic_study import cpu_plan, gpu_plan

pytestmark = pytest.mark.browser


@pytest.fixture
def full(full_study, opened):
    return lambda **options: opened(full_study / "report.html", **options)


def drawn(page):
    """Charts that can be seen, with the number of marks in each."""
    return page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('figure[data-chart]')]
        .filter(figure => figure.offsetWidth)
        .map(figure => [figure.dataset.chart, figure.querySelectorAll('svg path, svg text').length])
        )"""
    )


def test_every_chart_is_drawn_and_nothing_is_asked_for(full):
    report = full()
    assert drawn(report.page).keys() == {
        "throughput", "throughput_per_gpu", "crossovers", "marginal_return", "marginal_watt",
        "marginal_dollar", "efficiency", "scaling_law", "layout_map", "layout_ranking", "memory",
        "memory_parts", "memory_fit", "time_split", "flop_rate", "predicted_against_measured",
        "cost_hours", "factor_effects", "interactions", "best_rate", "tensor_parallel",
        "model_parallel", "batch_precision", "zero_steps", "zero_memory",
    }  # fmt: skip
    left_out = {
        figure.get_attribute("data-chart")
        for figure in report.page.locator("figure[data-chart]:has(.empty)").all()
    }
    assert left_out == {
        "marginal_watt", "marginal_dollar", "scaling_law", "memory_parts", "memory_fit",
        "time_split", "predicted_against_measured",
    }  # fmt: skip
    named = dict(line.split(": ") for line in report.page.locator("#left-out li").all_inner_texts())
    assert named["tokens per joule"] == "energy was not measured."
    assert named["collectives"].startswith("no probe of this cluster")
    assert {"power", "gemm rates", "model sizes", "generations mfu"} <= named.keys()
    for place in ("energy", "collectives", "peers", "communication"):  # nothing to see, no place
        assert not report.page.is_visible(f"#{place}")
    marks = {name: count for name, count in drawn(report.page).items() if name not in left_out}
    assert min(marks.values()) > 10
    assert report.errors == []
    assert report.requests == []


def test_the_answer_comes_first_and_is_written_large(full):
    page = full().page
    first = page.locator("main section:visible").first
    assert first.locator("p").first.inner_text().startswith("Use ")
    assert (
        float(first.locator("p").first.evaluate("e => parseFloat(getComputedStyle(e).fontSize)"))
        >= 22
    )


def test_another_model_redraws_everything(full):
    report = full()
    before = report.page.inner_text("#answer")
    report.select("model", "llama-8b")
    assert report.page.inner_text("#answer") != before
    assert "mfu" in drawn(report.page)
    assert "flop_rate" not in drawn(report.page)
    assert "GPUs" in report.page.text_content("figure[data-chart=throughput] svg")
    assert "model=llama-8b" in report.page.url
    assert report.errors == []


def test_a_link_opens_the_selection_it_was_copied_from(full):
    page = full(fragment="#model=llama-8b&size=4&theme=dark").page
    assert page.inner_text("#pick-model button[aria-pressed=true]") == "llama-8b"
    assert page.inner_text("#pick-size button[aria-pressed=true]") == "4"
    assert page.get_attribute("html", "data-theme") == "dark"


def test_choosing_a_size_redraws_ranking_and_memory(full):
    report = full(fragment="#model=llama-1b&size=8")
    title = report.page.inner_text("[data-size-title=layouts]")
    report.select("size", "2")
    report.page.wait_for_selector("figure[data-chart=memory][data-drawn$='/2']")
    assert title.startswith("At 8 GPUs")
    assert report.page.inner_text("[data-size-title=layouts]").startswith("At 2 GPUs")


def test_the_table_filters_by_words_and_by_outcome(full):
    page = full(fragment="#model=llama-8b").page
    everything = page.locator("#points tbody tr").count()
    page.click("#outcomes button:text-is('failed')")
    failed = page.locator("#points tbody tr").count()
    assert 0 < failed < everything
    assert page.locator("#points tbody .tag.failed").count() == failed
    page.fill("#find", "oom tp")
    tags = set(page.locator("#points tbody .tag").all_inner_texts())
    assert tags == {"oom"}
    assert 0 < page.locator("#points tbody tr").count() < failed
    page.fill("#find", "no row has these words")
    assert page.locator("#points tbody tr").count() == 0
    assert page.inner_text("#count").startswith("0 of ")


def test_a_column_sorts_both_ways_and_unknown_stays_last(full):
    page = full(fragment="#model=llama-8b").page
    steps = "table#points tbody tr td:nth-child({})"

    def column():
        names = page.locator("#points th").all_inner_texts()
        cells = page.locator(steps.format(1 + [n.split(" ▾")[0] for n in names].index("step (s)")))
        return cells.all_inner_texts()

    page.click("#points th button:text-is('step (s)')")
    falling = [float(text) for text in column() if text != "–"]
    assert falling == sorted(falling, reverse=True)
    assert column()[-1] == "–"
    page.click("#points th button:text-is('step (s)')")
    rising = [float(text) for text in column() if text != "–"]
    assert rising == sorted(rising)
    assert column()[-1] == "–"


def test_the_table_behind_a_chart_shows_its_rows(full):
    page = full().page
    page.click("figure[data-chart=throughput] summary")
    assert page.locator("figure[data-chart=throughput] tbody tr").count() == 3


def test_downloads_are_whole_csv_and_svg_files(full):
    page = full().page
    with page.expect_download() as download:
        page.click("figure[data-chart=throughput] .tools button:text-is('CSV')")
    rows = list(csv.DictReader(download.value.path().read_text(encoding="utf-8").splitlines()))
    assert [row["world_size"] for row in rows] == ["1", "2", "4"]
    with page.expect_download() as download:
        page.click("figure[data-chart=throughput] .tools button:text-is('SVG')")
    text = download.value.path().read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert "var(--" not in text
    with page.expect_download() as download:
        page.click("figure[data-chart=throughput] .tools button:text-is('PNG')")
    assert download.value.path().read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as download:
        page.click("#downloads button:has-text('refused.csv')")
    assert "divisible" in download.value.path().read_text(encoding="utf-8")


def test_the_theme_switch_changes_page_and_charts(full):
    page = full(color_scheme="light").page
    surface = "getComputedStyle(document.querySelector('#throughput')).backgroundColor"
    first = "document.querySelector('figure[data-chart=throughput] svg path[fill*=c1]')"
    mark = f"getComputedStyle({first}).fill"
    light = page.evaluate(surface), page.evaluate(mark)
    page.click("#theme")
    assert page.evaluate(surface) != light[0]
    assert page.evaluate(mark) != light[1]


def test_a_dark_system_gets_a_dark_page(full):
    assert full(color_scheme="dark").page.get_attribute("html", "data-theme") == "dark"


@pytest.mark.parametrize("width", [400, 760, 1280])
def test_the_page_is_never_wider_than_its_window(full, width):
    page = full(viewport={"width": width, "height": 800}, fragment="#model=llama-8b").page
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_paper_shows_charts_and_no_controls(full):
    page = full().page
    page.emulate_media(media="print")
    assert not page.is_visible("nav")
    assert not page.is_visible("#find")
    assert page.is_visible("figure[data-chart=throughput] svg")
    assert page.locator("#points tbody tr:visible").count() == 25


def test_every_chart_is_described_and_every_control_is_named(full):
    page = full().page
    charts = page.locator(".chart [role=graphics-document]").all()
    assert len(charts) > 15
    for chart in charts:
        assert re.fullmatch(r".{40,}\.", chart.get_attribute("aria-label"))
    names = page.evaluate(
        """[...document.querySelectorAll('button, input')]
        .map(control => control.textContent.trim() || control.getAttribute('aria-label') ||
        control.labels?.[0]?.textContent)"""
    )
    assert all(names)


def test_a_model_named_script_is_text(reported, opened):
    name = "<script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
    report = opened(reported(cpu_plan(models=(name, "tiny"), sizes=(1,))))
    assert name in report.page.inner_text("#note") + report.page.inner_text("#others")
    assert report.page.evaluate("window.broken") is None
    assert report.errors == []
    assert report.requests == []


def test_a_study_that_has_not_run_opens_without_charts_or_errors(reported, opened):
    report = opened(reported(gpu_plan(sizes=(1, 2)), ran=0.0))
    assert report.page.inner_text("#answer").startswith("Nothing has run yet")
    assert report.page.is_visible("#partial")
    shown = report.page.locator("figure[data-chart]:visible").count()
    lines = report.page.locator(".empty:visible").all_inner_texts()
    assert len(lines) >= shown - 1  # the map still shows what was refused
    assert all(line.startswith("Left out: ") for line in lines)
    assert report.errors == []


def test_one_size_one_model_has_no_selectors(reported, opened):
    report = opened(reported(cpu_plan(sizes=(2,))))
    assert not report.page.is_visible("#pick-model")
    assert not report.page.is_visible("#pick-cluster")
    assert not report.page.is_visible("#pick-batch")
    assert report.errors == []


def test_batches_of_one_model_are_chosen_apart(reported, opened):
    strong = gpu_plan(models=("llama-1b",), sizes=(1, 2), repeats=1)
    weak = gpu_plan(
        models=("llama-1b",), sizes=(1, 2), repeats=1, study_kind="weak", global_batch_size=8
    )
    report = opened(reported(strong, weak))
    options = report.page.locator("#pick-batch button").all_inner_texts()
    assert options == ["strong 64 × 4096", "weak 8 × 4096"]
    report.select("batch", "weak 8 × 4096")
    assert report.page.inner_text("#batch").startswith("Weak scaling: 8 sequences")


def test_without_javascript_answers_and_rows_are_readable(full_study, opened):
    page = opened(full_study / "report.html", java_script_enabled=False).page
    answers = page.locator("p.big:visible").all_inner_texts()
    assert [answer[:4] for answer in answers] == ["Use "] * 3
    assert page.locator("tbody tr:visible").count() > 100


def test_a_changed_number_format_reaches_sentences_and_page_alike(reported, opened, monkeypatch):
    formats = {"unknown": "?", "prefixes": [[1e3, 1e3, " kilo"]], "digits": 2}
    for name, value in formats.items():
        monkeypatch.setitem(numbers.FORMATS, name, value)
    page = opened(reported(gpu_plan(axes={"tp": (1, 2)}))).page
    rates = page.locator("#points tbody tr:not(.fail):not(.wait)").first.inner_text()
    assert " kilo" in rates
    assert " kilo" in page.inner_text("#figures")


def test_intervals_are_named_in_captions_by_what_they_are(full):
    page = full().page
    for chart in ("layout_ranking", "marginal_return"):
        caption = page.inner_text(f"figure[data-chart={chart}] figcaption")
        assert "95 % interval" in caption
        assert "{" not in caption


def test_a_model_with_a_hostile_name_is_text_everywhere(tmp_path, opened):
    name = "<script>document.title='x'</script>\u202e\nline"
    plan = gpu_plan(axes={"tp": (1, 2)}, models=("llama-8b",))
    points = [
        dataclasses.replace(p, model=dataclasses.replace(p.model, name=name))
        if dataclasses.is_dataclass(p.model)
        else dataclasses.replace(p, model=name)
        for p in plan.points
    ]
    study = tabulated(tmp_path / "study", dataclasses.replace(plan, points=points))
    report = opened(write_report(study, REPORTS, charts=False))
    text = report.page.inner_text("body")
    assert "<script>document.title='x'</script>\\u202e line" in text
    assert "\u202e" not in text
    assert report.page.title().startswith("Scaling report")
    assert report.errors == []
