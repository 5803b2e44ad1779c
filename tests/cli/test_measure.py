"""`scaling measure`: what it says of a point, and with which exit code it ends."""

import pytest
from typer.testing import CliRunner

from scaling import launch
from scaling.cli.verbs import app
from tests.points import tiny_point
from tests.rows import row_of


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
