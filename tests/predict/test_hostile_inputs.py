"""Seeded fuzzing: whatever people hand us is predicted, or refused in one short sentence."""

import json
import math
import random
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from scaling.cli import prediction as cli
from scaling.cli.recommend import recommend as recommend_verb
from scaling.errors import InputError
from scaling.importing.reader import read_rows
from scaling.predict.advise.candidates import Search
from scaling.predict.advise.recommend import recommend, record_of
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.read.calibration import read_calibration
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from tests.shipped import CLUSTERS, MODELS

pytestmark = pytest.mark.slow

SEED = 20261122


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


@pytest.fixture(scope="module")
def calibration_record(sweep_csv):
    table = read_rows(sweep_csv)
    some = table.filter(table.rows["world_size"].to_numpy() <= 8)
    points = points_of(some, clusters=CLUSTERS)
    return json.loads(calibrate(points, observed_of(some), source="t").to_json())


def test_changed_or_cut_calibrations_are_refused(tmp_path, calibration_record):
    draw, path = random.Random(SEED), tmp_path / "calibration.json"
    values = [None, True, 0, -1, 1e308, math.nan, math.inf, 10**400, "", "x" * 4000, [], {}, [1]]
    for _ in range(100):
        record = json.loads(json.dumps(calibration_record))
        place, key = record, draw.choice(list(record))
        while isinstance(place[key], dict) and place[key] and draw.random() < 0.85:
            place, key = place[key], draw.choice(list(place[key]))
        before = place.pop(key)
        if draw.random() < 0.8:
            place[key] = draw.choice([value for value in values if value != before])
        text = json.dumps(record)
        path.write_text(text[: draw.randrange(len(text))] if draw.random() < 0.05 else text)
        assert not survives(lambda: read_calibration(path))
    path.write_text("[" * 100_000)
    assert not survives(lambda: read_calibration(path))


def test_options_of_recommend_are_answered_or_refused():
    draw, answered = random.Random(SEED), 0
    precisions = ["fp32", "bf16", "fp16", "fp8", None]
    for _ in range(100):
        model = draw.choice(["llama3_1b", "tiny", "tiny_t5", "gpt2", "gpt_175b"])
        clusters = ["v100-32gb", "h100-80gb-efa", "mi300x-192gb", "local", "cpu", "x" * 5000]

        def asked(model=model, clusters=clusters):
            search = Search(
                model=model,
                shape=MODELS[model],
                cluster=draw.choice(clusters),
                clusters=CLUSTERS,
                gpus=draw.choice([1, 3, 7, 8, 12, 16, 37, 10**6, 10**12]),
                seq_length=draw.choice([1, 7, 512, 10**7]),
                global_batch_size=draw.choice([None, 1, 3, 64, 10**7]),
                precision=draw.choice(precisions),
            )
            best = recommend(search)
            json.dumps([record_of(one) for one in best], allow_nan=False)

        answered += survives(asked)
    assert 5 < answered < 95


@pytest.fixture(scope="module")
def verbs():
    app = typer.Typer()
    for verb in (cli.predict, cli.calibrate, cli.validate, recommend_verb):
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
