"""What a reader does with the page, in a real browser: filter, focus, links, budget, files."""

import csv
import xml.etree.ElementTree as ElementTree

import duckdb
import pytest

from tests.report.synthetic_study import cpu_plan

pytestmark = pytest.mark.browser


@pytest.fixture
def points(full_study, looked_at):
    """A page of one model, nothing filtered."""
    page = looked_at(full_study / "report.html", fragment="#model=llama-8b").page
    page.fill("#find", "")
    page.click("#outcomes button:text-is('all')")
    return page


def test_a_link_opens_the_selection_it_was_copied_from(full):
    page = full(fragment="#model=llama-8b&size=4&theme=dark").page
    assert page.inner_text("#pick-model button[aria-pressed=true]") == "llama-8b"
    assert page.inner_text("#pick-size button[aria-pressed=true]") == "4"
    assert page.get_attribute("html", "data-theme") == "dark"


def test_choosing_a_size_redraws_ranking_and_memory(full):
    report = full(fragment="#model=llama-1b&size=8")
    title = report.page.inner_text("[data-title=layouts]")
    report.select("size", "2")
    report.page.wait_for_selector("figure[data-chart=memory][data-drawn$='/2']")
    assert title.startswith("At 8 GPUs")
    assert report.page.inner_text("[data-title=layouts]").startswith("At 2 GPUs")


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
    "nothing=2": "false",
}


def test_the_filter_counts_what_sql_counts(points, full_study):
    page = points
    table = full_study / "tables" / "statistics.parquet"
    setting = int(page.get_attribute("html", "data-ready"))
    with duckdb.connect() as connection:
        for line, condition in FILTERS.items():
            page.fill("#find", line)
            (expected,) = connection.execute(
                f"select count(*) from read_parquet(?) where setting_id = ? and ({condition})",
                [str(table), setting],
            ).fetchone()
            assert page.inner_text("#count").split(" of ")[0] == str(expected), line
    assert page.inner_text("#count").endswith("there is no column nothing")
    placeholder = page.get_attribute("#find", "placeholder")
    page.fill("#find", placeholder)
    assert page.locator("#points tbody tr").count() > 0


def test_columns_are_chosen_and_focus_stays_on_the_box(points):
    page = points
    assert "point" not in page.locator("#points th").all_inner_texts()
    page.click("#columns summary")
    page.get_by_role("checkbox", name="point", exact=True).check()
    assert "point" in page.locator("#points th").all_inner_texts()
    assert page.evaluate("document.activeElement.dataset.name") == "point_id"


def test_focus_stays_on_the_control_that_was_pressed(full):
    report = full(fragment="#model=llama-1b")
    focused = "document.activeElement.textContent"
    report.select("model", "llama-8b")
    assert report.page.evaluate(focused) == "llama-8b"
    report.select("size", "4")
    assert report.page.evaluate(focused) == "4"
    report.page.click("#outcomes button:text-is('failed')")
    assert report.page.evaluate(focused) == "failed"
    report.page.click("#points th button:text-is('tp')")
    assert report.page.evaluate(focused) == "tp"
    other = report.page.locator("#overview .choose:not([aria-current=true])").first
    name = other.inner_text()
    report.page.evaluate("delete document.documentElement.dataset.ready")
    other.click()
    report.page.wait_for_selector("html[data-ready]")
    assert report.page.evaluate(focused) == name


def test_the_first_tab_leads_past_the_controls_to_the_answer(full):
    page = full().page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the answer"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "answer"


def test_a_link_to_a_section_keeps_the_selection_and_opens_there(full):
    page = full(fragment="#model=llama-8b").page
    page.click("#layouts h2 a")
    assert {"model=llama-8b", "at=layouts"} <= set(page.url.partition("#")[2].split("&"))
    again = full(fragment="#" + page.url.partition("#")[2]).page
    assert abs(again.locator("#layouts").bounding_box()["y"]) < 120
    plain = full(fragment="#method").page
    assert abs(plain.locator("#method").bounding_box()["y"]) < 900
    assert {"chart-memory", "chart-throughput_per_gpu"} <= set(
        page.evaluate("[...document.querySelectorAll('figure a')].map(a => a.hash.slice(1))")
    )


def test_a_budget_prices_every_size_and_stands_in_the_address(full):
    page = full(fragment="#model=llama-8b").page
    cost = ".selection:visible tr[data-sum=cost]"
    hours = page.locator(f"{cost} td").all_inner_texts()
    page.fill("#price", "2")
    assert page.inner_text(f"{cost} th") == "cost ($)"
    assert page.locator(f"{cost} td").all_inner_texts() != hours
    page.fill("#tokens", "1.5T")
    page.fill("#deadline", "500")
    late = page.locator(".selection:visible .late").count()
    assert "for 1.50" in page.inner_text(".selection:visible .for")
    assert page.inner_text("#cheapest").startswith("Cheapest within 500 days: ")
    assert "$" in page.inner_text("#cheapest")
    assert {"price=2", "tokens=1500000000000", "deadline=500"} <= set(
        page.url.partition("#")[2].split("&")
    )
    again = full(fragment="#" + page.url.partition("#")[2]).page
    assert again.locator(".selection:visible .late").count() == late > 0


def test_seven_models_are_a_list_to_choose_from(reported, opened):
    names = tuple(f"model-{number}" for number in range(7))
    plan = cpu_plan(models=names, sizes=(1, 2), axes={"tp": (1, 2)})
    report = opened(reported(plan))
    assert report.page.locator("#pick-model button").count() == 0
    report.page.evaluate("delete document.documentElement.dataset.ready")
    models = report.page.get_by_role("combobox", name="Model")
    models.focus()
    models.select_option(label="model-5")
    report.page.wait_for_selector("html[data-ready]")
    assert "model-5" in report.page.inner_text(".selection:visible .kind")
    assert report.page.locator("#overview tbody tr").count() == 7
    assert report.page.evaluate("document.activeElement.tagName") == "SELECT"


def test_the_table_filters_by_words_and_by_outcome(points):
    page = points
    everything = page.locator("#points tbody tr").count()
    page.click("#outcomes button:text-is('failed')")
    failed = page.locator("#points tbody tr").count()
    assert 0 < failed < everything
    assert page.locator("#points tbody .tag.failed").count() == failed
    page.fill("#find", "oom")
    tags = set(page.locator("#points tbody .tag").all_inner_texts())
    assert tags == {"oom"}
    assert 0 < page.locator("#points tbody tr").count() < failed
    page.fill("#find", "no row has these words")
    assert page.locator("#points tbody tr").count() == 0
    assert page.inner_text("#count").startswith("0 of ")


def test_a_column_sorts_both_ways_and_unknown_stays_last(points):
    page = points
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
    page = full(fragment="#model=tiny").page
    page.click("figure[data-chart=throughput_per_gpu] summary")
    rows = page.locator("figure[data-chart=throughput_per_gpu] tbody tr")
    rows.first.wait_for()
    assert rows.count() == 3


def test_downloads_are_whole_csv_and_svg_files(full):
    page = full(fragment="#model=tiny").page
    with page.expect_download() as download:
        page.click("figure[data-chart=throughput_per_gpu] .tools button:text-is('CSV')")
    rows = list(csv.DictReader(download.value.path().read_text(encoding="utf-8").splitlines()))
    assert [row["world_size"] for row in rows] == ["1", "2", "4"]
    assert {(row["study"], row["series"], row["interval"]) for row in rows} == {
        ("full", "measured", "95\u202f% interval of one run")
    }
    assert rows[0]["title"] == page.inner_text("[data-title=throughput]")
    with page.expect_download() as download:
        page.click("figure[data-chart=throughput_per_gpu] .tools button:text-is('SVG')")
    text = download.value.path().read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert "var(--" not in text
    for word in ("full: tiny on laptop", "● measured", "intervals: 95"):
        assert word in text
    with page.expect_download() as download:
        page.click("figure[data-chart=throughput_per_gpu] .tools button:text-is('PNG')")
    assert download.value.path().read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as download:
        page.click("#downloads button:has-text('refused.csv')")
    assert "divisible" in download.value.path().read_text(encoding="utf-8")
