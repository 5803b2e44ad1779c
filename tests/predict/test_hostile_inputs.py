"""Seeded fuzzing: whatever people hand us is predicted, or refused in one short sentence."""

import json
import random
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from scaling.cli import prediction as cli
from scaling.cli.recommend import recommend as recommend_verb
from scaling.errors import InputError
from scaling.predict.advise.candidates import Search
from scaling.predict.advise.recommendation import recommend, record_of
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
