"""Fixtures and settings that several test folders share."""

import atexit
import gc
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings

from tests.ran import Ran, scaling_warm

PROJECT = Path(__file__).parent.parent

GOLDEN = PROJECT / "tests" / "golden"

PUBLISHED = Path(os.environ.get("SCALING_PUBLISHED", PROJECT.parent / "shared" / "published"))


def published_csv(name):
    """The CSV of published rows of that name; skips the test where it is missing."""
    path = PUBLISHED / f"{name}.csv"
    if not path.is_file():
        pytest.skip(f"{path.name} is not here: set SCALING_PUBLISHED to the folder that holds it")
    return path


# The same examples on every machine and day; `--hypothesis-profile=wide` looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("wide", deadline=None, max_examples=500)
settings.load_profile("same")


def heed_signals():
    """Make child processes react to SIGINT and SIGHUP, however the tests were started.

    Children inherit ignored signals: SIGHUP under nohup, SIGINT in a script's background jobs. A
    signal with a handler is reset to its default in a child. This process itself still ignores a
    SIGHUP under nohup.
    """
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: lambda *_: None}
    for number, handler in handlers.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def keep_bytecode():
    """Compile each module once for the tests and the hundred processes that they start.

    With PYTHONDONTWRITEBYTECODE, which many containers set, every process would compile them all.
    """
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def spare_disk():
    """Let writes of this process return before they are on the disk: no test cuts the power."""
    os.fsync = lambda descriptor: None


def pytest_configure():
    heed_signals()
    keep_bytecode()
    spare_disk()


def pytest_collection():
    gc.disable()  # what is imported and collected stays: walking it takes as long as a torch import


def pytest_collection_finish():
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # after pytest's last collections


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write the golden texts anew")


@pytest.fixture
def golden(request):
    """Compare a text with tests/golden/<name>, or write it with --update-golden."""

    def compare(name, text):
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden text {name}; look at the text, then --update-golden"
        assert text == path.read_text(encoding="utf-8")

    return compare


MINI = {
    "num_layers": 2, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "ffn_hidden_size": 128,
    "vocab_size": 256, "source": "made for a test",
}  # fmt: skip
MODELS = {"mini": MINI}
CLUSTERS = {
    "here": {"gpu": "cpu", "gpus_per_node": 4, "nodes": 2, "source": "made for a test"},
    "there": {"gpu": "h100-80gb", "gpus_per_node": 8, "nodes": 4, "source": "made for a test"},
}
STUDY: dict[str, Any] = {
    "title": "A test",
    "kind": "strong",
    "axes": {
        "model": "mini", "cluster": "here", "world_size": [1, 2], "global_batch_size": 8,
        "seq_length": 32, "precision": "fp32",
    },
}  # fmt: skip


@pytest.fixture
def config(tmp_path):
    """A config folder with one model, two clusters and no study."""
    folder = tmp_path / "config"
    (folder / "studies").mkdir(parents=True)
    (folder / "models.yaml").write_text(yaml.safe_dump(MODELS))
    (folder / "clusters.yaml").write_text(yaml.safe_dump(CLUSTERS))
    return folder


@pytest.fixture
def write_study(config):
    """Write config/studies/<name>.yaml, which is STUDY with changes, and return its path."""

    def write(name="one", **changes):
        path = config / "studies" / f"{name}.yaml"
        axes = {**STUDY["axes"], **changes.pop("axes", {})}
        path.write_text(yaml.safe_dump({**STUDY, **changes, "axes": axes}))
        return path

    return write


def copy_project(folder):
    """A checkout in which a study can run, without any results."""
    root = folder / "project"
    root.mkdir()
    for name in ("workflow", "config", "reports"):
        shutil.copytree(PROJECT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "Snakefile", root)
    return root


@pytest.fixture
def project(tmp_path):
    """A checkout for one test."""
    return copy_project(tmp_path)


STEPS = "warmup_steps: 3\n  measured_steps: 10\n"
FEW_STEPS = "warmup_steps: 1\n  measured_steps: {at_least: 5, at_most: 10, until: 0.5}\n"
TOKENS, FEW_TOKENS = "seq_length: 128\n", "seq_length: 64\n"


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory):
    """The quickstart from its YAML to its report: fewer steps, half the tokens, no wider model.

    Tests look at whether its points were trained, not at how precisely they were measured. Only
    what starts ranks imports anew; test_package runs a study as a new user does.
    """
    root = copy_project(tmp_path_factory.mktemp("quickstart"))
    study = root / "config" / "studies" / "quickstart.yaml"
    shipped = study.read_text()
    assert STEPS in shipped
    assert TOKENS in shipped
    study.write_text(shipped.replace(STEPS, FEW_STEPS).replace(TOKENS, FEW_TOKENS))
    models = root / "config" / "models.yaml"
    shapes = yaml.safe_load(models.read_text())
    shapes["small"] |= {"hidden_size": 128, "ffn_hidden_size": 384}
    models.write_text(yaml.safe_dump(shapes))
    ran = scaling_warm(root, "run", "quickstart")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    yield Ran(root, "quickstart", ran.stdout)
    shutil.rmtree(root)
