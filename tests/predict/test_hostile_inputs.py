"""Seeded fuzzing: whatever people hand us is predicted, or refused in one short sentence."""

import datetime
import json
import math
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from scaling.cli import accuracy
from scaling.cli import prediction as cli
from scaling.errors import InputError
from scaling.foreign import conditions
from scaling.foreign.columns import Columns
from scaling.foreign.conditions import rows_where
from scaling.foreign.reading import read_rows
from scaling.importing.rows import import_rows
from scaling.predict.advise.recommend import recommend, record_of
from scaling.predict.cost.model import predict
from scaling.predict.cost.tables import prediction_table
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.fit.validation import trial
from scaling.predict.read.calibration import read_calibration
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from tests.analyse.conftest import PAPER_ROW
from tests.shipped import CLUSTERS, MODELS

pytestmark = pytest.mark.slow

SEED = 20261122
CELLS = [
    "", "0", "-1", "1", "2", "8", "1.5", "1e3", "1e308", "-1e308", "9" * 25, "9" * 5000, "nan",
    "inf", "-inf", "NaN", "null", "None", "true", "FALSE", "0x10", "1_000", "１２", "8;8", "8\t8",
    "a,b", 'say "x"', "two\nlines", "ü", "\x00", "\x1b[31m", "../../etc/passwd", "$(touch X)",
    "=1+1", "x" * 3000, "2026-11-22", "[1, 2]", "{}", "oom", "ok", "flash2", "bf16", "fp8", "mxfp8",
    "h100-80gb", "cpu", "other", "llama2_7b", "10000000", "9007199254740993", "1e-320",
]  # fmt: skip


def check_sentence(error):
    said = str(error)
    assert said.strip()
    assert "\n" not in said
    assert len(said) < 2500, said


def survives(run):
    """Whether `run` succeeded; what it raises must be one short sentence."""
    try:
        run()
    except InputError as error:
        check_sentence(error)
        return False
    return True


def quoted(cell):
    text = str(cell)
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n\r') else text


def some_table(draw):
    """A CSV as bytes: some rows of a good one, and some things wrong with it."""
    names, rows = list(PAPER_ROW), [list(PAPER_ROW.values()) for _ in range(draw.randint(0, 4))]
    for _ in range(draw.choice([0, 1, 1, 2, 5])):
        kind = draw.randrange(6)
        if kind <= 2 and rows:
            draw.choice(rows)[draw.randrange(len(names))] = draw.choice(CELLS)
        elif kind == 3 and len(names) > 1:
            gone = draw.randrange(len(names))
            del names[gone]
            for row in rows:
                del row[gone]
        elif kind == 4:
            names[draw.randrange(len(names))] = draw.choice(
                [*CELLS[:40], *PAPER_ROW, "Cluster", "ep"]
            )
        elif rows:
            draw.choice(rows).append(draw.choice(CELLS))
    separator = draw.choice([",", ",", ",", ",", ";", "\t"])
    lines = [separator.join(quoted(cell) for cell in line) for line in (names, *rows)]
    encoding = draw.choice(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"])
    text = draw.choice(["\n", "\n", "\r\n"]).join(lines) + draw.choice(["\n", "", "\n\n"])
    content = text.encode(encoding, errors="replace")
    return content[: draw.randrange(len(content) + 1)] if draw.random() < 0.05 else content


def test_tables_are_predicted_imported_and_validated_or_refused(tmp_path):
    draw, path = random.Random(SEED), tmp_path / "rows.csv"
    done = {"predict": 0, "import": 0, "validate": 0}
    for _ in range(100):
        path.write_bytes(some_table(draw))

        def predicted():
            columns = Columns(read_rows(path), "rows.csv")
            points = points_of(columns, models=MODELS, clusters=CLUSTERS)
            observed_of(columns)
            table = prediction_table(points, predict(points))
            for row in table.to_pylist():
                if row["note"] is None:
                    assert 0 < row["predicted_step_time_s"] < math.inf
                    assert row["predicted_memory_bytes"] > 0

        def imported():
            import_rows(path, tmp_path / "study", CLUSTERS)
            for row in pq.read_table(tmp_path / "study" / "published.parquet").to_pylist():
                assert row["outcome"] != "ok" or 0 < row["step_time_s"] < math.inf

        def validated():
            found = trial(read_rows(path), "rows.csv", models=MODELS, clusters=CLUSTERS)
            json.dumps(found.to_dict(), allow_nan=False)

        for name, run in (("predict", predicted), ("import", imported), ("validate", validated)):
            done[name] += survives(run)
    assert min(done.values()) > 10  # and not everything is refused


def test_parquet_of_any_type_is_predicted_or_refused(tmp_path):
    draw, path = random.Random(SEED), tmp_path / "rows.parquet"
    values = [None, True, 8, -1, 2.5, math.nan, math.inf, "8", b"\xff", [1], {"a": 1}, 2**62,
              datetime.date(2026, 1, 1)]  # fmt: skip
    good = {n: int(v) if v.isdigit() else v for n, v in PAPER_ROW.items()} | {"step_time_s": 0.5}
    done = {"predict": 0, "import": 0}
    for _ in range(40):
        row = dict(good)
        for _ in range(draw.choice([1, 1, 3])):
            row[draw.choice(list(row))] = draw.choice(values)
        pq.write_table(pa.Table.from_pylist([row]), path)

        def predicted():
            columns = Columns(read_rows(path), "rows.parquet")
            points = points_of(columns, models=MODELS, clusters=CLUSTERS)
            observed_of(columns)
            prediction_table(points, predict(points))

        done["predict"] += survives(predicted)
        done["import"] += survives(lambda: import_rows(path, tmp_path / "study", CLUSTERS))
    assert 5 < min(done.values()) <= max(done.values()) < 35


@pytest.fixture(scope="module")
def calibration_record(sweep_csv):
    columns = Columns(read_rows(sweep_csv), "sweep")
    rows = columns.numbers("world_size") <= 8
    some = columns.filter(rows)
    points = points_of(some, clusters=CLUSTERS)
    return json.loads(calibrate(points, observed_of(some), source="t").to_json())


def test_calibrations_are_read_or_refused_and_what_is_read_predicts(
    tmp_path, calibration_record, sweep_csv
):
    draw, path = random.Random(SEED), tmp_path / "calibration.json"
    columns = Columns(read_rows(sweep_csv), "sweep")
    points = points_of(columns.filter(columns.numbers("tp") < 2), clusters=CLUSTERS)
    values = [None, True, 0, -1, 1e308, math.nan, math.inf, 10**400, "", "x" * 4000, [], {}, [1]]
    read = 0
    for _ in range(200):
        record = json.loads(json.dumps(calibration_record))
        for _ in range(draw.choice([1, 1, 2])):
            place, key = record, draw.choice(list(record))
            while isinstance(place[key], dict) and place[key] and draw.random() < 0.85:
                place, key = place[key], draw.choice(list(place[key]))
            if draw.random() < 0.2:
                del place[key]
                if not place:
                    break
            else:
                place[key] = draw.choice(values)
        text = json.dumps(record)
        path.write_text(text[: draw.randrange(len(text))] if draw.random() < 0.05 else text)

        def predicted():
            prediction = predict(points, read_calibration(path))
            assert (prediction.step_time_s[prediction.predicted] > 0).all()
            assert (prediction.low[prediction.predicted] <= prediction.high).all()

        read += survives(predicted)
    assert 5 < read < 195
    path.write_text("[" * 100_000)
    assert not survives(lambda: read_calibration(path))


CONDITIONS = [
    "tp = 1", "pp > 1 or tp > 1", "outcome = 'ok'", "global_batch_size >= 1",
    "tp in (1, 2)", "world_size is not null",
    "world_size > 8", "model like 'ref%'", "row_index < 3", "hash(row_index) % 2 = 0", "true",
    "1=1); copy (select 1) to 'written'; select (1", "1=1) union all select 5 --", "1=1; drop x",
    "exists (select * from read_text('/etc/passwd'))", "(select count(*) from glob('/*')) > 0",
    "(select content from read_text('/etc/passwd')) like 'root%'", "install httpfs", "load httpfs",
    "world_size in (from 'rows.csv')", "set enable_external_access = true", "pragma version", "",
    "world_size", "model", "nothing > 1", "(" * 3000, "1" * 5000, "'", '"', "--", "/*", "\x00",
    "?", "*", "count(*) > 1", "sum(world_size) over () > 1", "1/0 = 1", "world_size::date > '20'",
    "columns('.*') > 1", "world_size > 8, tp > 1", "world_size > 8 order by 1", "unnest([1])",
    "attach 'x.db'", "export database 'x'", "'ü' = model", "world_size between 8 and", "not",
]  # fmt: skip


def test_conditions_choose_rows_or_are_refused_and_touch_nothing(tmp_path, monkeypatch, sweep_csv):
    table = read_rows(sweep_csv)
    (tmp_path / "rows.csv").write_text("a\n1\n")
    monkeypatch.chdir(tmp_path)
    draw, chosen = random.Random(SEED), 0
    asked = [*CONDITIONS]
    while len(asked) < 120:
        one, other = draw.choice(CONDITIONS), draw.choice(CONDITIONS)
        cut = draw.randrange(len(one) + 1)
        joined = f"{one} {draw.choice(['and', 'or', ')', '(', ';', '--', ','])} {other}"
        asked.append(draw.choice([one[:cut] + other, joined, one[:cut]]))
    for condition in asked:
        chosen += survives(lambda text=condition: rows_where(table, text, "rows", "--where"))
    assert 15 < chosen < 110
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
    for reading in [one for one in CONDITIONS if "read_text" in one or "glob(" in one]:
        with pytest.raises(InputError, match="Permission"):
            rows_where(table, reading, "rows", "--where")


@pytest.mark.parametrize(
    "condition",
    [
        "world_size in (select count(*) from range(1000000000000))",
        "(with recursive t(x) as (select 1 union all select x + 1 from t) from t) > world_size",
    ],
)
def test_a_condition_that_never_ends_is_interrupted(monkeypatch, sweep_csv, condition):
    monkeypatch.setattr(conditions, "TIME_LIMIT_S", 0.2)
    with pytest.raises(InputError, match=r"takes longer than 0\.2 s"):
        rows_where(read_rows(sweep_csv), condition, "rows", "--where")


def test_options_of_recommend_are_answered_or_refused():
    draw, answered = random.Random(SEED), 0
    precisions = ["fp32", "bf16", "fp16", "fp8", None]
    for _ in range(100):
        model = draw.choice(["llama3_1b", "tiny", "tiny_t5", "gpt2", "gpt_175b"])
        clusters = ["v100-32gb", "h100-80gb-efa", "mi300x-192gb", "local", "cpu", "x" * 5000]

        def asked(model=model, clusters=clusters):
            best = recommend(
                model=model,
                shape=MODELS[model],
                cluster=draw.choice(clusters),
                clusters=CLUSTERS,
                gpus=draw.choice([1, 3, 7, 8, 12, 16, 37, 10**6, 10**12]),
                seq_length=draw.choice([1, 7, 512, 10**7]),
                global_batch_size=draw.choice([None, 1, 3, 64, 10**7]),
                precision=draw.choice(precisions),
            )
            json.dumps([record_of(one) for one in best], allow_nan=False)

        answered += survives(asked)
    assert 5 < answered < 95


@pytest.fixture(scope="module")
def verbs():
    app = typer.Typer()
    for verb in (cli.predict, cli.calibrate, accuracy.validate, cli.recommend):
        app.command()(verb)
    return app


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "ROWS", "FOLDER"],
        ["predict", "ROWS", "ROWS/below/out.parquet"],
        ["predict", "FOLDER", "out.parquet"],
        ["predict", "ROWS", "x" * 300],
        ["calibrate", "ROWS", "FOLDER", "--where", "world_size <= 8 and tp = 1 and pp = 1"],
        ["calibrate", "ROWS", "c.json", "--probes", "ROWS"],
        ["validate", "ROWS", "--test-where", "false"],
        ["validate", "x" * 300],
        ["predict", "\x00", "out.parquet"],
        ["recommend", "--model", "llama2_7b", "--cluster", "v100-32gb", "--gpus", "9" * 5000],
        ["recommend", "--model", "llama2_7b", "--cluster", "v100-32gb", "--gpus", ","],
        ["recommend", "--model", "x" * 5000, "--cluster", "v100-32gb", "--gpus", "8"],
        ["recommend", "--model", "tiny", "--cluster", "cpu", "--gpus", "8"],
        ["recommend", "--model", "tiny", "--cluster", "x", "--gpus", "8", "--precision", "9"],
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_one_sentence(
    verbs, tmp_path, monkeypatch, sweep_csv, arguments
):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    given = [one.replace("ROWS", str(sweep_csv)).replace("FOLDER", "folder") for one in arguments]
    done = CliRunner().invoke(verbs, given)
    if not isinstance(done.exception, SystemExit):  # the command line itself refused
        assert isinstance(done.exception, InputError), done.exception
        check_sentence(done.exception)
    assert done.exit_code != 0
    assert Path("folder").is_dir()
