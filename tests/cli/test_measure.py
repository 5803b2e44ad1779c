"""`scaling measure`: what it says of a point, and with which exit code it ends."""

import signal

import pytest
from typer.testing import CliRunner

from scaling import launch
from scaling.cli.verbs import app
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

    def measured(point, row, *, excluded):
        left_out.extend(excluded)
        return row_of(tiny_point(), **changes)

    monkeypatch.setattr(launch, "measure", measured)
    said = CliRunner().invoke(app, ["measure", "tiny.json", "tiny.parquet", "--excluded=n1,n2"])
    assert (said.exit_code, said.output) == (0, line)
    assert left_out == ["n1", "n2"]
    # from the row on, a kill would have the point measured again
    assert all(signal.getsignal(number) is signal.SIG_IGN for number in SIGNALS)
