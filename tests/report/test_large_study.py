"""A study as somebody decides from: two clusters, three models, every outcome, predictions."""

import pytest

from scaling.analyse.warehouse import tabulate
from scaling.importing.rows import import_rows
from scaling.record.files import write_points
from scaling.report.charts.charts import CHARTS
from scaling.report.page.page import write_report
from tests.analyse.conftest import PAPER_ROW
from tests.predict.reference import write_csv
from tests.report.conftest import REPORTS
from tests.report.large_study import AXES, CLUSTERS, predict_all
from tests.report.synthetic_study import gpu_plan

ON_H100 = "#model=llama-8b&cluster=h100-80gb-dgx&batch=strong+64+%C3%97+4096"


@pytest.mark.slow
def test_the_page_of_four_hundred_points_has_at_most_a_megabyte(large):
    assert large.stat().st_size <= 1_000_000


@pytest.mark.browser
@pytest.mark.parametrize("width", [1440, 400])
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_window(large, looked_at, width):
    report = looked_at(large, fragment=ON_H100, viewport={"width": width, "height": 900})
    page = report.page
    assert report.errors == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    charts = page.locator("figure[data-chart]:visible").evaluate_all(
        "figures => figures.map(figure => figure.dataset.chart)"
    )
    assert set(charts) == set(CHARTS)
    assert charts.count("collectives") == 3
    assert page.evaluate("document.documentElement.scrollHeight") < (7000 if width > 400 else 12000)


@pytest.mark.browser
def test_a_predicted_cell_is_marked_and_its_interval_holds_80_of_100(large, looked_at):
    page = looked_at(large, fragment=f"{ON_H100}&deadline=5").page
    assert page.inner_text(".selection:visible h2.big").startswith("Predicted: use 64")
    assert "(80\u202f% interval)" in page.inner_text(".selection:visible .between")
    health = page.inner_text(".selection:visible .health")
    assert "Predicted, not measured, from data sheet" in health
    assert "It fits with a chance of" in health
    assert page.locator("#matrix td.predicted").count() >= 4


@pytest.mark.browser
def test_a_study_that_is_only_predicted_says_so(tmp_path, opened):
    plan = gpu_plan(
        models=("llama-8b",), cluster="h100-80gb-dgx", sizes=(8, 16), axes=AXES, repeats=1
    )
    write_points(tmp_path, plan)
    (tmp_path / "study.json").write_text('{"mode": "predict"}')
    predict_all(tmp_path)
    tabulate(tmp_path, REPORTS / "sql", clusters=CLUSTERS)
    report = opened(write_report(tmp_path, REPORTS, charts=False))
    page = report.page
    assert page.inner_text(".selection:visible h2.big").startswith("Predicted: use ")
    assert not page.is_visible("#partial")
    assert "predicted tokens/s" in page.locator("#rows th").all_inner_texts()
    assert page.locator("figure[data-chart=prediction_error]").count() == 0
    page.fill("#find", "mfu>=10%")
    assert page.inner_text("#count") == "no point here has a value of mfu"
    assert report.errors == []


@pytest.mark.browser
def test_a_study_of_published_rows_only_says_so(tmp_path, opened):
    row = PAPER_ROW | {"global_batch_size": 64}  # micro-batch 2 on each of up to 32 replicas
    rows = [
        row | {"world_size": size, "zero_stage": stage, "step_time_s": seconds * slower}
        for size, seconds in ((8, 0.5), (16, 0.27), (32, 0.16), (64, 0.1))
        for stage, slower in ((1, 1), (3, 1.1))
    ]
    study = tmp_path / "study"
    import_rows(write_csv(tmp_path / "rows.csv", rows), study, {})
    tabulate(study, REPORTS / "sql")
    page = opened(write_report(study, REPORTS, charts=False)).page
    assert page.inner_text(".selection:visible h2.big").startswith("Published: use ")
    assert "Published by others, not measured here" in page.inner_text(".health:visible")
    assert page.locator("#rows .tag.published").count() == 8
    hollow = "figure[data-chart=throughput_per_gpu] [data-tip][fill='var(--surface)']"
    assert page.locator(hollow).count() == 4
