"""The report of a study of 420 points with two clusters, three models and predictions."""

from pathlib import Path

import pytest

from scaling.analyse.ties import NOISE_FLOOR
from scaling.analyse.warehouse import tabulate
from scaling.importing.rows import import_rows
from scaling.record.files import write_points
from scaling.report.charts.charts import CHARTS
from scaling.report.page.page import write_report
from scaling.report.tables import Tables, read_tables
from tests.analyse.conftest import PAPER_ROW
from tests.predict.reference import write_csv
from tests.report.conftest import REPORTS
from tests.report.large_study import AXES, CLUSTERS, predict_all, write_large_study
from tests.report.synthetic_study import gpu_plan
from tests.report.test_browser import drawn

ON_H100 = "#model=llama-8b&cluster=h100-80gb-dgx"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_large_study(tmp_path_factory.mktemp("large") / "study", REPORTS, charts=False)


@pytest.fixture(scope="module")
def tables(large: Path) -> Tables:
    return read_tables(large.parent)


@pytest.mark.slow
def test_every_model_cluster_and_outcome_is_in_the_large_study(tables):
    assert len(tables["statistics"]) == 420
    assert {row["model"] for row in tables["settings"]} == {"llama-1b", "llama-8b", "tiny"}
    assert len({row["cluster"] for row in tables["settings"]}) == 3
    outcomes = {row["outcome"] for row in tables["outcomes"]} - {None}
    assert len(outcomes) == 8


@pytest.mark.slow
def test_the_page_of_four_hundred_points_can_be_mailed(large):
    assert large.stat().st_size < 5_000_000


@pytest.mark.slow
def test_predictions_keep_their_series_and_are_drawn_only_where_nothing_ran(tables):
    ran = {
        (row["setting_id"], row["world_size"])
        for row in tables["best"]
        if row["series"] == "measured"
    }
    foretold = {
        (row["setting_id"], row["world_size"])
        for row in tables["best"]
        if row["series"] == "predicted"
    }
    assert ran
    assert foretold
    assert not ran & foretold
    assert {size for _, size in foretold} >= {32, 64}
    assert all(
        row["peak_memory_bytes"] is None for row in tables["best"] if row["series"] == "predicted"
    )


@pytest.mark.slow
def test_parts_of_memory_and_time_add_up(tables):
    for row in tables["memory_parts"]:
        assert row["to_bytes"] - row["from_bytes"] == pytest.approx(row["bytes"], rel=1e-4, abs=1e6)
    last = [row for row in tables["memory_parts"] if row["part_order"] == 5]
    assert all(row["to_bytes"] == row["total_bytes"] for row in last)
    ends = [row["share_to"] for row in tables["time_split"] if row["part_order"] == 5]
    assert ends
    assert ends == pytest.approx([1.0] * len(ends))


@pytest.mark.slow
def test_charts_show_and_split_the_step_of_the_layout_that_is_advised(tables):
    slots = {(r["setting_id"], r["layout_name"]): r["slot"] for r in tables["contenders"]}
    advised = {}
    for row in tables["best"]:
        advised[row["setting_id"], row["world_size"]] = row["advised_layout_name"]
        assert row["slot"] == slots[row["setting_id"], row["advised_layout_name"]]
    assert any(row["layout_name"] != row["advised_layout_name"] for row in tables["best"])
    assert tables["time_split"]
    for row in tables["time_split"]:
        assert row["layout_name"] == advised[row["setting_id"], row["world_size"]]


@pytest.mark.slow
def test_costs_follow_from_rate_price_and_power(tables):
    prices = {row["setting_id"]: row["usd_per_gpu_hour"] for row in tables["settings"]}
    rates = {
        (r["setting_id"], r["series"], r["world_size"]): r["tokens_per_s"] for r in tables["best"]
    }
    for row in tables["costs"]:
        rate = rates[row["setting_id"], row["series"], row["world_size"]]
        hours = row["world_size"] / rate / 3600
        assert row["gpu_hours_per_token"] == pytest.approx(hours, rel=1e-4)
        if (price := prices[row["setting_id"]]) is None:
            assert row["usd_per_token"] is None
        else:
            assert row["usd_per_token"] == pytest.approx(hours * price, rel=1e-4)
            metered = prices[row["setting_id"]] == CLUSTERS["h100-80gb-dgx"].usd_per_gpu_hour
            assert row["joules_from"] == (
                "measured" if metered and row["series"] == "measured" else "tdp"
            )


@pytest.mark.slow
def test_off_the_front_somebody_is_faster_and_cheaper_beyond_the_noise(tables):
    assert any(row["series"] == "measured" for row in tables["costs"])
    for one in tables["costs"]:
        rivals = [
            row
            for row in tables["costs"]
            if (row["setting_id"], row["series"]) == (one["setting_id"], one["series"])
            and row is not one
        ]
        beaten = any(
            row["hours_per_token"] <= one["hours_per_token"]
            and row["gpu_hours_per_token"] <= one["gpu_hours_per_token"] / (1 + NOISE_FLOOR)
            for row in rivals
        )
        if one["series"] == "measured":
            assert one["on_front"] or beaten


@pytest.mark.browser
@pytest.mark.parametrize("width", [1440, 400])
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_window(large, looked_at, width):
    report = looked_at(large, fragment=ON_H100, viewport={"width": width, "height": 900})
    page = report.page
    assert report.errors == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("figure[data-chart]:visible .empty").count() == 0
    assert not page.is_visible("#not-shown")
    assert len(drawn(page)) == len(CHARTS)
    assert page.evaluate("document.documentElement.scrollHeight") < (8000 if width > 400 else 16000)
    assert page.locator("figure[data-chart=collectives] .panels h3").all_inner_texts() == [
        "all-gather", "all-reduce", "send-recv",
    ]  # fmt: skip
    assert "node-3 takes 1.40 times as long for gemm" in page.inner_text("#collectives")


@pytest.mark.browser
def test_the_reader_chooses_tokens_deadline_and_series(large, opened):
    report = opened(large, fragment=ON_H100)
    page = report.page
    page.fill("#deadline", "3000")
    assert page.inner_text("#cheapest").startswith("Cheapest within 3\u202f000 days: ")
    page.locator("#tokens").fill("100G")
    assert "for 100" in page.inner_text(".selection:visible .for")
    assert "tokens=100000000000" in page.url
    page.fill("#deadline", "0.000001")
    assert page.inner_text("#cheapest").startswith("No size finishes")
    report.select("series", "measured")
    dashed = page.locator(
        "figure[data-chart=throughput_per_gpu] path[stroke-dasharray='4,3']"
    ).all()
    assert not any("L" in path.get_attribute("d") for path in dashed)
    assert report.errors == []


@pytest.mark.browser
def test_predictions_have_a_sentence_of_their_own(large, looked_at, opened):
    page = looked_at(large, fragment=ON_H100, viewport={"width": 1440, "height": 900}).page
    assert page.inner_text(".selection:visible h2").startswith("Measured: ")
    assert page.inner_text(".selection:visible .beyond").startswith("Predicted beyond")
    tiny = opened(large, fragment="#model=tiny&cluster=local").page
    assert tiny.locator(".beyond:visible").count() == 0


@pytest.mark.browser
def test_a_study_that_is_only_predicted_says_so_in_every_sentence(tmp_path, opened):
    plan = gpu_plan(models=("llama-8b",), cluster="h100-80gb-dgx", axes=AXES, sizes=(4, 8, 16))
    write_points(tmp_path, plan)
    (tmp_path / "study.json").write_text('{"mode": "predict"}', encoding="utf-8")
    predict_all(tmp_path)
    tabulate(tmp_path, REPORTS / "sql", clusters=CLUSTERS)
    report = opened(write_report(tmp_path, REPORTS, charts=False))
    page = report.page
    assert page.inner_text(".selection:visible h2").startswith("Predicted: ")
    for section in ("throughput", "returns", "effects"):
        assert page.inner_text(f"[data-title={section}]").startswith("Predicted: ")
    assert page.inner_text(".selection:visible .kind").startswith("predicted")
    assert "predicted tokens/s" in page.locator("#points th").all_inner_texts()
    assert not page.is_visible("#partial")
    assert page.inner_text("[data-title=statistics]").startswith(
        f"{len(plan.points)} points are predicted"
    )
    assert not page.is_visible("#accuracy")
    assert report.errors == []


@pytest.mark.browser
def test_a_study_of_published_rows_only_is_a_full_report(tmp_path, opened):
    row = PAPER_ROW | {"global_batch_size": 64}  # micro-batch 2 on each of up to 32 replicas
    rows = [
        row | {"world_size": size, "zero_stage": stage, "step_time_s": seconds * slower}
        for size, seconds in ((8, 0.5), (16, 0.27), (32, 0.16), (64, 0.1))
        for stage, slower in ((1, 1), (3, 1.1))
    ]
    study = tmp_path / "study"
    import_rows(write_csv(tmp_path / "rows.csv", rows), study, {})
    tabulate(study, REPORTS / "sql")
    report = opened(write_report(study, REPORTS, charts=False))
    page = report.page
    assert page.inner_text(".selection:visible h2").startswith("Published: ")
    assert page.locator("#points .tag.published").count() == 8
    hollow = page.locator(
        "figure[data-chart=throughput_per_gpu] path[fill='var(--surface)']"
    ).count()
    assert hollow == 4
    assert report.errors == []
