"""`scaling measure`: what it says of a point, and with which exit code it ends."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scaling import launch
from scaling.cli.verbs import app
from tests.conftest import PROJECT
from tests.points import tiny_point
from tests.rows import row_of

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def keep_signal_handlers():
    """The verb ignores signals once the row is there; the test process shall not go on doing so."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "tiny: ok\n"),
        ({"outcome": "oom", "error_message": "no \x1b room"}, "tiny: oom: no \\x1b room\n"),
    ],
)
def test_the_outcome_is_said_with_its_reason(monkeypatch, changes, line):
    left_out = []

    def measured(point, row, *, excluded, implied):
        left_out.extend(excluded)
        return row_of(tiny_point(), **changes)

    monkeypatch.setattr(launch, "measure", measured)
    said = CliRunner().invoke(app, ["measure", "tiny.json", "tiny.parquet", "--excluded=n1,n2"])
    assert (said.exit_code, said.output) == (0, line)
    assert left_out == ["n1", "n2"]
    # from the row on, a kill would have the point measured again
    assert all(signal.getsignal(number) is signal.SIG_IGN for number in SIGNALS)


MEASURE = """\
from scaling import launch
from scaling.cli.verbs import main
from scaling.launch.not_measured import NotWritten
from tests.points import tiny_point
from tests.rows import row_of
def full(): raise NotWritten("no room")
launch.measure = lambda *_, **__: {}
main()
"""


@pytest.mark.parametrize(("left", "code"), [("row_of(tiny_point())", 0), ("full()", 74)])
def test_the_exit_code_stands_though_nothing_can_be_printed(left, code):
    command = [sys.executable, "-c", MEASURE.format(left), "measure", "tiny.json", "tiny.parquet"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=PROJECT, stdout=full, stderr=full, check=False)
    assert done.returncode == code
