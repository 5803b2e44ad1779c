"""Studies small enough to run in a test."""

import re
from pathlib import Path

import pytest
import yaml

from scaling.launch.start.forked import FORK_SERVERS_WANTED
from tests.conftest import MODELS, STUDY

SMALL = {
    "title": "Five points",
    "kind": "strong",
    "axes": {**STUDY["axes"], "cluster": "local", "global_batch_size": 4},
    "layouts": [{"zero_stage": [1, 3]}, {"world_size": 1, "attention": "flash3"}],
    "measure": {"warmup_steps": 1, "time_limit_s": 300.0},
}


@pytest.fixture(autouse=True)
def no_fork_server(request, monkeypatch):
    """With a stand-in that measures, no fork server imports torch and DeepSpeed for it."""
    if not request.node.get_closest_marker("ranks"):
        monkeypatch.setenv(FORK_SERVERS_WANTED, "0")


@pytest.fixture
def small(project):
    """A checkout with a study of five points, one of which asks for a kernel that is missing."""
    models = project / "config" / "models.yaml"
    models.write_text(models.read_text() + yaml.safe_dump(MODELS))
    (project / "config" / "studies" / "small.yaml").write_text(yaml.safe_dump(SMALL))
    return project


PAGE = "import sys; from pathlib import Path; Path(sys.argv[1], 'report.html').touch()"


def stand_in(project: Path, *, report: str = PAGE, **programs: str) -> None:
    """Let these verbs be programs of a test, and the report an empty page: charts take seconds."""
    for verb, program in {**programs, "report": report}.items():
        (project / f"stand_in_{verb}.py").write_text(program)
        rule = project / "workflow" / "rules" / f"{verb}.smk"
        program = f'quoted(sys.executable, "stand_in_{verb}.py") + " '
        text, count = re.subn(rf'SCALING\s*\+ " {verb} ', program, rule.read_text())
        assert count == 1
        rule.write_text(text)
