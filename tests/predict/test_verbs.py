"""The verbs of the prediction, from files to files."""

import csv
import json

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from scaling.cli import prediction
from scaling.cli.recommend import recommend
from scaling.errors import InputError
from scaling.predict.cost.memory import MEMORY_TERMS
from scaling.predict.cost.step import TIME_TERMS
from tests.conftest import PROJECT
from tests.predict.reference import write_csv
from tests.processes import modules_after
from tests.ran import scaling_warm

pytestmark = pytest.mark.slow


@pytest.fixture
def run():
    app = typer.Typer()
    for verb in (prediction.predict, prediction.calibrate, prediction.validate, recommend):
        app.command()(verb)

    def invoke(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


def test_predict_writes_a_row_a_point_in_their_order(run, sweep_csv, tmp_path):
    run("predict", sweep_csv, tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["point_index"].to_pylist() == list(range(table.num_rows))
    names = {"fits", "predicted_memory_bytes", "predicted_step_time_s", "low", "high"}
    assert names | set(MEMORY_TERMS) | set(TIME_TERMS) <= set(table.column_names)
    for row in table.slice(0, 5).to_pylist():
        step_s, needed = row["predicted_step_time_s"], row["predicted_memory_bytes"]
        assert sum(row[name] for name in TIME_TERMS) == pytest.approx(step_s)
        assert sum(row[name] for name in MEMORY_TERMS) == pytest.approx(needed)
        assert row["low"] < step_s < row["high"]


def test_a_point_that_cannot_be_predicted_is_null_and_says_why(run, tmp_path):
    text = "model,num_layers,hidden_size,num_heads,vocab_size,cluster,seq_length,tp,pp,world_size\n"
    row = "m,8,512,8,1000,a100-80gb,1024"
    (tmp_path / "p.csv").write_text(f"{text}{row},1,1,8\n{row},3,1,8\n")
    run("predict", tmp_path / "p.csv", tmp_path / "o.parquet")
    good, bad = pq.read_table(tmp_path / "o.parquet").to_pylist()
    assert good["fits"] is True
    assert bad["fits"] is None
    assert bad["predicted_step_time_s"] is None
    assert bad["note"] == "world_size is not a multiple of tp x pp x cp"


def test_an_empty_table_gives_an_empty_table_of_the_same_columns(run, tmp_path, sweep_csv):
    header = sweep_csv.read_text().splitlines()[0]
    (tmp_path / "none.csv").write_text(header + "\n")
    run("predict", tmp_path / "none.csv", tmp_path / "none.parquet")
    run("predict", sweep_csv, tmp_path / "some.parquet")
    none, some = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("none", "some"))
    assert none.num_rows == 0
    assert none.schema == some.schema


@pytest.fixture
def learned(run, sweep_csv, tmp_path):
    """The rows of a sweep on 8 and 16 GPUs, and what some of them teach, given their points."""
    rows = pyarrow.csv.read_csv(sweep_csv)
    rows = rows.filter(pc.less_equal(rows["world_size"], 16))
    names = pa.array([f"p{number}" for number in range(rows.num_rows)])

    def text(table, *planned):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        pq.write_table(table, folder / "rows.parquet")
        for name, points in zip(("points", "round1"), planned, strict=False):
            pq.write_table(points.select(["point_id"]), folder / f"{name}.parquet")
        chosen = ("--points", folder / "points.parquet") if planned else ()
        run("calibrate", folder / "rows.parquet", folder / "c.json", *chosen)
        return (folder / "c.json").read_text()

    return rows.append_column("point_id", names), text


def test_rows_of_points_that_a_study_no_longer_has_do_not_calibrate(learned):
    rows, text = learned
    kept = rows.filter(pc.less_equal(rows["world_size"], 8))
    # one was added, because its layout ran on a slow node only
    assert text(rows, kept[:-1], kept[-1:]) == text(kept) != text(rows)


def test_a_study_whose_software_changed_is_calibrated_on_most_of_its_rows(learned):
    rows, text = learned
    software = pa.array(["new"] * 3 + ["old"] * (rows.num_rows - 3))
    table = rows.append_column("stack_fingerprint", software)
    with pytest.raises(InputError, match="choose one with --where"):
        text(table)
    assert text(table, table) == text(table[3:])


def test_calibrate_then_predict_comes_closer(run, sweep_csv, tmp_path):
    said = run("calibrate", sweep_csv, tmp_path / "c.json", "--where", "world_size <= 16")
    assert "parameters identified" in said
    measured = pyarrow.csv.read_csv(sweep_csv)["step_time_s"]

    def error(*options):
        run("predict", sweep_csv, tmp_path / "o.parquet", *options)
        table = pq.read_table(tmp_path / "o.parquet")
        ratio = pc.divide(table["predicted_step_time_s"], measured)
        return set(table["parameters_from"].to_pylist()), pc.mean(pc.abs(pc.ln(ratio))).as_py()

    sheet, fit = error(), error("--calibration", tmp_path / "c.json")
    assert (sheet[0], fit[0]) == ({"data sheet"}, {"reference|a100-40gb-dgx"})
    assert fit[1] < 0.5 * sheet[1]


def test_validate_prints_the_fixed_keys_over_all_and_under_groups(run, sweep_csv):
    text = run("validate", sweep_csv, "--calibrate-where", "world_size <= 16", "--json")
    found = json.loads(text)
    for record in (found, *found["groups"]):
        assert {"mape", "median_ape", "rms", "max_ape"} <= set(record["step_time"])
        assert {"mean", "max"} <= set(record["regret"])
        assert {"balanced_accuracy", "false_fit_rate", "false_oom_rate"} <= set(record["memory"])
        assert "coverage_80" in record
    assert [group["world_size"] for group in found["groups"]] == [32, 32, 32]
    assert found["step_time"]["mape"] < 0.1


def test_validate_for_people_is_a_table_of_stacks_and_sizes(run, sweep_csv):
    said = run("validate", sweep_csv, "--test-where", "model = 'ref-1b'")
    assert "ref-1b" in said
    assert "reference" in said  # the software, by which rows are grouped too
    assert "data-sheet numbers" in said


def test_recommend_by_name(run):
    of = ("recommend", "--cluster", "h100-80gb-dgx", "--no-rehearse", "--model")
    records = json.loads(run(*of, "llama2_13b", "--gpus", "64,32", "--json"))
    ranks = [(gpus, rank) for gpus in (32, 64) for rank in (1, 2, 3)]
    assert [(one["gpus"], one["rank"]) for one in records] == ranks
    # the report's decision: one layout of each size, the same at both as none is far better
    assert len({one["label"] for one in records if one["advised"]}) == 1
    assert [one["gpus"] for one in records if one["advised"]] == [32, 64]
    said = run(*of, "llama2_7b", "--gpus", "8")
    # TDP is an upper bound: no meter was read
    assert all(words in said for words in ("memory left", " use ", "by TDP"))


def test_recommend_says_days_and_dollars_of_a_run(run):
    of = ("recommend", "--model", "llama2_7b", "--cluster", "h100-80gb", "--gpus", "8,64",
          "--no-rehearse", "--tokens", "2T", "--usd-per-gpu-hour", "2.5")  # fmt: skip
    for one in json.loads(run(*of, "--json")):
        assert one["days"] == pytest.approx(2e12 / one["tokens_per_s"] / 86400)
        assert one["gpu_hours"] == pytest.approx(one["days"] * 24 * one["gpus"])
        assert one["usd"] == pytest.approx(2.5 * one["gpu_hours"])
        assert one["usd_per_million_tokens"] == pytest.approx(one["usd"] / 2e6)
    said = run(*of)
    assert "GPU-hours" in said
    assert "J / token" not in said
    for wrong in ("2X", "0", "1e999", "1.2.3T"):
        with pytest.raises(InputError, match="give a number such as 15T"):
            run(*of, "--tokens", wrong)


def test_a_gpu_count_on_which_nothing_fits_is_said_beside_the_others():
    of = ["recommend", "--model", "llama2_70b", "--cluster", "h100-80gb-dgx", "--json",
          "--no-rehearse", "--gpus"]  # fmt: skip
    done = scaling_warm(PROJECT, *of, "1,64")
    assert {one["gpus"] for one in json.loads(done.stdout)} == {64}
    assert "--gpus 1: none of" in done.stderr
    assert scaling_warm(PROJECT, *of, "1").returncode == 2


ON_8 = ("recommend", "--cluster", "h100-80gb", "--gpus", "8", "--model")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((*ON_8, "llama2_8b"), "did you mean"),
        ((*ON_8, "llama2_7b", "--gpus", "8;9"), "with commas"),
        ((*ON_8, "llama2_7b", "--gpus", "0"), "at least 1"),
        ((*ON_8, "llama2_7b", "--gpus", "٨"), "give GPU counts"),
        ((*ON_8, "llama2_7b", "--cluster", "tpu"), "unknown cluster 'tpu'"),
        ((*ON_8, "tiny", "--setting", "routing=learnt"), "'learnt': did you mean 'learned'"),
        ((*ON_8, "tiny", "--setting", "tp=2"), "--setting tp: "),
        (("predict", "t.csv", "./t.csv"), r"t\.csv: would be replaced by what is made from it"),
        (("calibrate", "t.csv", "./t.csv"), r"t\.csv: would be replaced by what is made from it"),
        (("predict", "t.csv", "p.csv"), r"p\.csv: a prediction is Parquet; name it .*p\.parquet"),
        (("predict", "absent.csv", "out.parquet"), "no such file"),
        (("predict", "t.csv", "."), "cannot be written: Is a directory"),
        (("predict", "x" * 300, "out.parquet"), "File name too long"),
        (("calibrate", "t.csv", "t.csv/below/c.json"), "written: Not a directory"),
        (("calibrate", "t.csv", "c.json", "--where", "world_size < 0"),
            "--where 'world_size < 0' leaves no row"),
        (("calibrate", "t.csv", "c.json", "--points", "points.parquet"),
            "has no column point_id, by which --points chooses rows"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_sentence_and_leaves_files_alone(
    run, sweep_csv, tmp_path, monkeypatch, arguments, sentence
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_bytes(sweep_csv.read_bytes())
    pq.write_table(pa.table({"point_id": ["a"]}), "points.parquet")
    with pytest.raises(InputError, match=sentence):
        run(*arguments)
    assert (tmp_path / "t.csv").read_bytes() == sweep_csv.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"t.csv", "points.parquet"}


def test_predicting_loads_neither_torch_nor_scipy_nor_duckdb():
    rooms = ("predict.cost.model", "predict.advise.recommendation", "cli.recommend")
    loaded = modules_after("import " + ", ".join(f"scaling.{room}" for room in rooms))
    assert not {"torch", "scipy", "duckdb", "deepspeed"} & loaded


def test_words_of_a_table_do_not_steer_the_terminal(run, sweep_csv, tmp_path):
    lines = sweep_csv.read_text(encoding="utf-8").replace("ref-1b", "[b]\x1b")
    (tmp_path / "rows.csv").write_text(lines, encoding="utf-8")
    with pytest.raises(InputError, match="must be without control characters") as refused:
        run("validate", tmp_path / "rows.csv")
    assert "\x1b" not in str(refused.value)


def test_calibrate_leaves_out_rows_that_cannot_be(run, sweep_csv, tmp_path):
    with sweep_csv.open(encoding="utf-8", newline="") as text:
        rows = list(csv.DictReader(text))
    few = [row for row in rows if row["world_size"] == "8" and row["tp"] == row["pp"] == "1"]
    ran = next(row for row in few if row["outcome"] == "ok")
    counts = []
    for more in ([], [{**ran, "step_time_s": "1e-7"}]):
        rows = write_csv(tmp_path / "rows.csv", [*few, *more])
        run("calibrate", rows, tmp_path / "c.json")
        (stack,) = json.loads((tmp_path / "c.json").read_text())["stacks"].values()
        counts.append(stack["rows_timed"])
    assert counts[0] == counts[1] > 0
