"""The page in a real browser: it answers to the reader, and asks nobody for anything."""

import dataclasses
import json
import re
from pathlib import Path

import duckdb
import pytest

from scaling.report import text as report_text
from scaling.report.page.page import write_report
from tests.report.conftest import REPORTS, tabulated
from tests.report.synthetic_study import cpu_plan, gpu_plan

pytestmark = pytest.mark.browser

HEADLINE = ".selection:visible h2.big"
# what is wrong with what can be seen: too wide, overlapping words of a chart, cut, too small
FAULTS = Path(__file__).with_name("faults.js").read_text(encoding="utf-8")


@pytest.fixture
def seen(full_study, looked_at):
    """The report of `full_study` as it opens."""
    return looked_at(full_study / "report.html")


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


def said(page):
    """The headline, with ordinary spaces."""
    return re.sub(r"[\u00a0\u202f]", " ", page.inner_text(HEADLINE))


def test_the_page_asks_nobody_and_logs_nothing(seen):
    assert seen.errors == []
    assert seen.requests == []
    assert seen.page.locator("figure[data-chart]:visible svg").count() >= 4


def test_the_script_says_what_the_page_said_without_it(full_study, opened):
    plain = opened(full_study / "report.html", java_script_enabled=False).page
    live = opened(full_study / "report.html").page
    for number in range(3):
        live.select_option("#pick", index=number)
        here, there = (
            page.locator("#answer .selection").nth(number).inner_text() for page in (live, plain)
        )
        assert here == there
    cells = "#matrix td"
    assert live.locator(cells).all_inner_texts() == plain.locator(cells).all_inner_texts()


@pytest.mark.parametrize("width", [400, 760, 1024, 1440])
def test_the_page_fits_its_window_and_the_answer_is_on_the_first_screen(
    full_study, looked_at, width
):
    height = 860 if width < 500 else 900
    page = looked_at(
        full_study / "report.html", viewport={"width": width, "height": height}, fragment="#"
    ).page
    faults = page.evaluate(FAULTS, 10)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert faults == {"wide": [], "clash": [], "cut": [], "small": []}
    box = page.locator(".selection:visible .health").bounding_box()
    assert box["y"] + box["height"] < height


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 400)])
def test_axe_finds_nothing_in_the_theme_of_the_system(full, theme, width):
    from axe_playwright_python.sync_playwright import Axe

    page = full(color_scheme=theme, viewport={"width": width, "height": 900}).page
    assert page.get_attribute("html", "data-theme") == theme
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert [
        (violation["id"], [node["html"] for node in violation["nodes"]])
        for violation in Axe().run(page).response["violations"]
    ] == []


NUMBERS = {
    "0.5T": 0.5e12, "0,5 T": 0.5e12, "0,5T": 0.5e12, "140 billion": 140e9, "1e12": 1e12,
    "140G": 140e9, "140B": 140e9, "1,000,000": 1e6, "1 000 000": 1e6, "2 trillion tokens": 2e12,
    "3.5e11": 3.5e11, ".5t": 0.5e12, "1000000": 1e6,
}  # fmt: skip


@pytest.mark.parametrize(("typed", "tokens"), NUMBERS.items())
def test_tokens_are_read_as_people_write_them(seen, typed, tokens):
    page = seen.page
    page.fill("#tokens", typed)
    assert page.inner_text("#tokens-error") == ""
    amount = report_text.amount(tokens).replace("\u202f", " ")
    assert said(page).endswith(f"for {amount} tokens.")
    page.fill("#tokens", "")


@pytest.mark.parametrize("field", ["tokens", "price", "deadline"])
@pytest.mark.parametrize("typed", ["-5", "0", "a lot", "1.2.3", "5 parsecs", "1e999", "1,23,4"])
def test_input_that_is_no_number_is_an_error_and_changes_nothing(seen, field, typed):
    page = seen.page
    before = page.inner_text("#answer .selection:visible")
    page.fill(f"#{field}", typed)
    assert page.inner_text(f"#{field}-error").startswith("not a number above 0")
    assert page.get_attribute(f"#{field}", "aria-invalid") == "true"
    assert page.inner_text("#answer .selection:visible") == before
    page.fill(f"#{field}", "")
    assert page.inner_text(f"#{field}-error") == ""


def test_headline_alternatives_and_matrix_follow_price_and_deadline(full):
    page = full(fragment="#model=llama-1b").page
    assert said(page).startswith("Use 8 GPUs with")
    hours = said(page)
    page.fill("#price", "2.5")
    assert "$" in said(page)
    assert "GPU\u2011hours" in hours  # in which no line ends
    assert all("$" in text for text in page.locator("#matrix [data-is=cost]").all_inner_texts())
    page.fill("#deadline", "10 d")
    assert said(page).startswith("Use 1 GPU with")  # the cheapest in time
    assert page.locator("[data-is=cheaper]:visible").count() == 0
    page.fill("#deadline", "2")
    assert said(page).startswith("Use 4 GPUs with")
    assert "too late" in page.inner_text("[data-is=cheaper]:visible")
    between = page.inner_text(".selection:visible .between")
    in_time = re.search(r"The chance to finish in time is (?:over )?(\d+)", between)
    assert 50 < int(in_time[1]) <= 99
    assert page.locator("#matrix tr[data-id='2'] .late").count() == 2
    page.fill("#deadline", "1 h")
    assert "No size finishes within" in page.inner_text(".selection:visible .between")
    link = page.url
    other = full(fragment=link[link.index("#") :]).page
    assert other.inner_text("#answer .selection:visible") == page.inner_text(
        "#answer .selection:visible"
    )


def test_a_cell_of_the_matrix_opens_its_layouts_and_back_returns(full):
    page = full(fragment="#model=tiny").page
    before = page.inner_text(HEADLINE)
    page.click("#matrix tr[data-id='3'] td[data-size='4'] a")
    assert page.locator(".selection:visible .size[open]").get_attribute("id") == "s3-4"
    assert "llama-8b" in page.inner_text("#answer .selection:visible .kind")
    page.click("#matrix tr[data-id='3'] td[data-size='8'] a")
    assert page.locator(".selection:visible .size[open]").get_attribute("id") == "s3-8"
    page.go_back()
    assert page.locator(".selection:visible .size[open]").get_attribute("id") == "s3-4"
    page.go_back()
    assert page.inner_text(HEADLINE) == before


def test_a_run_is_copied(full):
    report = full(permissions=["clipboard-read", "clipboard-write"])
    page = report.page
    run = page.locator(".selection:visible .size[open] .runs").first
    run.locator("summary").click()
    block = run.locator('.run:has(h3:text("DeepSpeed"))').first
    block.locator("button").click()
    page.wait_for_selector("button:text-is('Copied')")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert json.loads(copied)["zero_optimization"]["stage"] in (0, 1, 3)


FILTERS = {
    "tp=2": "tp = 2",
    "tp 2": "tp = 2",
    "gpus>=4 tp=2": "world_size >= 4 and tp = 2",
    "8 GPUs": "world_size = 8",
    "tp=2 gpus>=4 failed": "world_size >= 4 and tp = 2 and outcome != 'ok'",
    "oom": "outcome = 'oom'",
    "oo": "false",  # no part of a word
    "ran pp=2": "outcome = 'ok' and pp = 2",
    "zero_stage!=3": "zero_stage != 3",
    "memory>40": "peak_memory_bytes > 40 * 1024 ** 3",
    "mfu>=30%": "mfu >= 0.3",
    "tokens/s>10k": "tokens_per_s > 10000",
    "zero_shard_size=none": "zero_shard_size is null",
    "tp=": "true",  # not yet said
}


def test_the_filter_counts_what_sql_counts(full, full_study):
    page = full(fragment="#model=llama-8b").page
    table, setting = full_study / "tables" / "statistics.parquet", 3
    with duckdb.connect() as connection:
        for line, condition in FILTERS.items():
            page.fill("#find", line)
            (expected,) = connection.execute(
                f"select count(*) from read_parquet(?) where group_id = ? and ({condition})",
                [str(table), setting],
            ).fetchone()
            assert page.inner_text("#count").split(" of ")[0] == str(expected), line


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nothing=2", "there is no column nothing"),
        ("predicted_tokens_per_s>1", "no point here has a value of predicted_tokens_per_s"),
    ],
)
def test_a_filter_on_a_missing_column_says_so(seen, line, words):
    seen.page.fill("#find", line)
    assert seen.page.inner_text("#count") == words
    seen.page.fill("#find", "")


def test_the_examples_of_the_help_find_points_on_every_page(large, looked_at, seen):
    for page in (seen.page, looked_at(large).page):
        for number in range(page.locator("#pick option").count()):
            page.select_option("#pick", index=number)
            examples = page.locator("#find-help code").all_inner_texts()
            assert len(examples) >= 3
            for example in examples:
                page.fill("#find", example)
                assert page.locator("#rows tbody tr").count() > 0, example
            page.fill("#find", "")


def test_columns_sort_both_ways_and_can_be_chosen(full):
    page = full(fragment="#model=llama-8b").page
    sizes = "#rows tbody td:nth-child(2)"
    for _ in range(2):
        page.click("#rows th button:text-is('GPUs')")
    numbers = [int(text) for text in page.locator(sizes).all_inner_texts()]
    assert numbers == sorted(numbers)
    page.click("#columns summary")
    page.check("#columns input[data-name=duration_s]")
    assert "took (s)" in page.locator("#rows th").all_inner_texts()


def test_a_chart_is_one_tab_stop_whose_marks_the_arrows_read(seen):
    page = seen.page
    charts = page.locator("figure:visible svg")
    assert page.locator("figure svg [tabindex], figure a, figure button").count() == 0
    charts.first.focus()
    page.keyboard.press("ArrowRight")
    first = page.inner_text("#tip")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#tip") != first
    assert "tokens/s" in first
    page.keyboard.press("Escape")
    assert not page.is_visible("#tip")
    for chart in charts.all():
        assert re.fullmatch(r".{40,}\.", chart.get_attribute("aria-label"))


def test_the_theme_switch_changes_page_and_charts(full):
    page = full(color_scheme="light").page
    colour = "getComputedStyle(document.querySelector('figure svg [fill*=ink]')).fill"
    before = page.evaluate(colour)
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == "dark"
    assert page.evaluate(colour) != before


@pytest.mark.parametrize(("models", "answers"), [(3, 3), (30, 1)])
def test_paper_shows_answers_matrix_charts_and_method_on_at_most_six_pages(
    reported, opened, models, answers
):
    names = tuple(f"model-{number}" for number in range(models))
    page = opened(reported(cpu_plan(models=names, axes={"tp": (1,)}, sizes=(1, 2)))).page
    paper = page.pdf(prefer_css_page_size=True)
    assert 1 <= len(re.findall(rb"/Type\s*/Page[^s]", paper)) <= 6
    page.emulate_media(media="print")
    assert page.locator("h2.big:visible").count() == answers
    assert page.locator("#matrix tbody tr:visible").count() == models
    assert page.locator(".size:visible").count() == 1 <= page.locator("figure:visible").count()
    assert page.locator("button:visible, input:visible, select:visible").count() == 0


def test_a_study_that_has_not_run_opens_without_charts_or_errors(reported, opened):
    report = opened(reported(gpu_plan(sizes=(1, 2)), ran=0.0))
    assert said(report.page).startswith("No point has a result yet")
    assert report.page.is_visible("#partial")
    assert not report.page.is_visible("#inputs")
    assert report.errors == []


def test_batches_of_one_model_are_chosen_apart(reported, opened):
    strong = gpu_plan(models=("llama-1b",), sizes=(1, 2), repeats=1)
    weak = gpu_plan(
        models=("llama-1b",), sizes=(1, 2), repeats=1, study_kind="weak", global_batch_size=8
    )
    report = opened(reported(strong, weak))
    report.select("weak 8 × 4096")
    assert "weak scaling: 8 sequences" in report.page.inner_text(".selection:visible .kind")
    assert "Weak scaling: a step takes" in report.page.inner_text("#answer .selection:visible")


def test_a_model_with_a_hostile_name_is_text_everywhere(hostile):
    page = hostile.page
    text = page.text_content("body")
    assert "<script>document.title='x'</script><img src=x onerror=" in text
    assert "\u202e" not in text
    page.locator("figure:visible svg").first.focus()
    page.keyboard.press("ArrowRight")
    page.fill("#find", "<img>")
    assert page.title() not in ("x", "y")
    assert not page.is_visible("#pick-place")
    assert hostile.errors == []
    assert hostile.requests == []
