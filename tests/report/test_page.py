"""The page as a file: whole, self-contained, and nothing in it but what was measured."""

import base64
import csv
import io
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
import zipfile

import pytest

from scaling.analyse.warehouse import tabulate
from scaling.errors import InputError
from scaling.importing.rows import import_rows
from scaling.record.files import write_rows
from scaling.report.charts.svg import file_name
from scaling.report.page.page import write_report
from scaling.report.tables import COLUMNS, read_tables
from tests.report.conftest import REPORTS, SMALL_AXES, tabulated
from tests.report.synthetic_study import cpu_plan, gpu_plan, measured, timed_row, write_study

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(full_study):
    return (full_study / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def one_size(tmp_path_factory):
    """A tabulated study of one size and a model whose name is a program; it has an old chart."""
    plan = cpu_plan(models=("<script>alert(1)",), sizes=(1,))
    study = tabulated(tmp_path_factory.mktemp("one_size") / "study", plan)
    (study / "charts").mkdir()
    (study / "charts" / "old.svg").write_text("<svg/>", encoding="utf-8")
    return study


PLANNED = [*gpu_plan(axes=SMALL_AXES).points, *cpu_plan().points]


def embedded(page, name):
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.S)
    return json.loads(found.group(1))


def columns(page, name):
    """The columns of an embedded table, each with a value for every row."""
    told = embedded(page, "data")[name]
    return {
        key: values if isinstance(values, list) else [values["all"]] * told["rows"]
        for key, values in told["columns"].items()
    }


def test_the_page_of_three_models_has_at_most_400_kb(full_study):
    assert (full_study / "report.html").stat().st_size <= 400_000


def test_nothing_outside_the_file_is_named_as_a_source(page):
    own = page[: page.index('<script type="module">')]
    assert not re.findall(r'(?:src|href)\s*=\s*["\']?(?!#|data:)[a-z]+:', own)
    assert "@import" not in own
    assert "unsafe-eval" not in own
    assert "Content-Security-Policy" in own


def test_every_outcome_and_every_refusal_is_in_the_page(page):
    assert set(columns(page, "statistics")["outcome"]) == {
        "ok", "oom", "timeout", "hang", "kernel_unavailable", "launch_failed", "node_failed",
        "error",
    }  # fmt: skip
    assert any("divisible" in reason for reason in columns(page, "refused")["reason"])


def test_the_tables_are_one_zip_in_the_page(page):
    (archive,) = re.findall(r'href="data:application/zip;base64,([^"]+)"', page)
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(archive))) as tables:
        assert {f"{name}.csv" for name in COLUMNS} == set(tables.namelist())
        rows = list(csv.DictReader(io.StringIO(tables.read("statistics.csv").decode())))
    assert len(rows) == len(PLANNED)


def test_each_chart_is_a_file_with_colours_and_text(full_study):
    files = sorted((full_study / "charts").glob("*.svg"))
    pictures = sorted((full_study / "charts").glob("*.png"))
    assert [path.stem for path in pictures] == [path.stem for path in files]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    drawn = {path.stem.split("-", 3)[-1] for path in files}
    assert {"throughput_per_gpu", "factor_effects"} <= drawn
    for path in files:
        text = path.read_text(encoding="utf-8")
        ElementTree.fromstring(text)
        assert "var(--" not in text
        assert "{GPU" not in text


def test_ranks_on_a_cpu_gpus_on_a_cluster(full_study):
    charts = full_study / "charts"
    on_cpu = (charts / "1-tiny-laptop-throughput_per_gpu.svg").read_text(encoding="utf-8")
    on_gpu = (charts / "2-llama-1b-h100-throughput_per_gpu.svg").read_text(encoding="utf-8")
    assert "Number of ranks" in on_cpu
    assert "Number of GPUs" in on_gpu


def test_a_page_without_a_script_has_every_answer_layout_and_chart(page, full_tables):
    own = page[: page.index('<script type="application/json"')]
    assert len(re.findall(r'<h2 class="big" data-is="headline"[^>]*>Use ', own)) == 3
    assert own.count('<svg role="img"') >= 12
    tried = {(row["group_id"], row["world_size"]) for row in full_tables["estimates"]}
    assert own.count('<details class="size"') == len(tried)


def test_without_tables_the_verb_that_writes_them_is_named(tmp_path):
    with pytest.raises(
        InputError, match=r"tables.comparison_groups\.parquet: is missing; `scaling tabul"
    ):
        write_report(tmp_path, REPORTS)


def test_a_missing_caption_is_named(one_size, tmp_path):
    study = shutil.copytree(one_size, tmp_path / "study")
    with pytest.raises(InputError, match=r"captions.throughput_per_gpu\.md: is missing"):
        write_report(study, tmp_path, charts=False)


def test_long_lists_are_cut_by_setting_and_the_page_says_so(full_study, monkeypatch):
    monkeypatch.setattr("scaling.report.tables.MOST_ROWS", 10)
    tables = read_tables(full_study)
    assert [len(tables.of(setting)["statistics"]) for setting in (1, 2, 3)] == [10, 10, 10]
    assert tables.cut == ("statistics", "refused")
    assert len(tables["estimates"]) > 30


def test_a_row_that_cannot_be_is_named_on_the_page_and_wins_nothing(tmp_path):
    plan = cpu_plan(sizes=(1,))
    study = write_study(tmp_path / "study", plan, ran=0.0)
    first = next(iter(measured(plan.points)))
    one = next(p for p in plan.points if p.point_id == first.point_id)
    write_rows(study / "rows" / "<b>.parquet", [timed_row(one, 1.0, mean_power_w=float("nan"))])
    tabulate(study, REPORTS / "sql")
    assert read_tables(study)["sizes"] == []
    page = write_report(study, REPORTS, charts=False).read_text(encoding="utf-8")
    assert "rows/&lt;b&gt;.parquet: mean_power_w=nan: must be a finite number" in page


def test_points_with_other_losses_are_named_on_the_page(tmp_path):
    plan = cpu_plan(sizes=(1,))
    study = write_study(tmp_path / "study", plan, ran=0.0)
    same = [p for p in plan.points if p.layout.precision == "fp32"][:3]
    for number, one in enumerate(same):
        losses = [7.0, 6.0 if number else 5.0]
        write_rows(study / "rows" / f"{number}.parquet", [timed_row(one, 1.0, losses=losses)])
    tabulate(study, REPORTS / "sql")
    page = write_report(study, REPORTS, charts=False).read_text(encoding="utf-8")
    said = (
        f"<code>{same[0].point_id}</code>: loss 16.67\u202f% from the median of 3 layouts at step 2"
    )
    assert said in page
    assert f"<code>{same[1].point_id}</code>: " not in page
    assert re.search("losses of (this|another) layout differ from those of the", page)


def test_a_file_is_named_by_words_of_others_without_leaving_its_folder():
    assert file_name("collectives-../../../x") == "collectives-.._.._.._x"
    assert file_name("..") == "_"
    long = [file_name("m" * 300 + end) for end in ("a", "b")]
    assert len(set(long)) == 2
    assert all(len(name) <= 120 for name in long)


def test_what_a_publisher_leaves_unstated_is_called_unknown_and_not_none(tmp_path):
    rows = (
        "model,cluster,world_size,seq_length,global_batch_size,outcome,step_time_s,total_params\n"
    )
    rows += "foo,Frontier,8,2048,64,ok,10,7e9\n"
    (tmp_path / "rows.csv").write_text(rows, encoding="utf-8")
    import_rows(tmp_path / "rows.csv", tmp_path / "study", {})
    tabulate(tmp_path / "study", REPORTS / "sql")
    page = write_report(tmp_path / "study", REPORTS, charts=False).read_text(encoding="utf-8")
    assert "<li>foo: 7.00\u202fB parameters; on Frontier (GPU unknown)</li>" in page
