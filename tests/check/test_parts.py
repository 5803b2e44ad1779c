"""The check as a whole: what is known is written, and what fails ends nothing else."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaling.check import __main__ as check
from scaling.check.lines import Line, pass_or_fail


def passed(name: str) -> Line:
    return pass_or_fail("facts", name, passes=True, said="")


def test_a_part_that_raises_leaves_its_traceback_and_the_next_part_runs() -> None:
    def broken() -> Iterator[Line]:
        yield passed("one")
        raise OSError("no device")

    parts = [("memory", broken), ("rates", lambda: [passed("two")])]
    one, failed, two = check.checked(parts, is_late=lambda: False)
    assert (one.name, two.name) == ("one", "two")
    assert (failed.section, failed.state, failed.said) == ("memory", "fail", "OSError: no device")
    assert failed.log is not None
    assert "in broken" in failed.log


def test_what_is_not_reached_in_time_is_not_here() -> None:
    late = iter([False, False, True, True])
    parts = [(name, lambda: map(passed, "abc")) for name in ("training", "outcomes")]
    lines = [*check.checked(parts, is_late=lambda: next(late))]
    assert [line.name for line in lines] == ["a", "b", "what follows", "all of it"]
    assert [line.state for line in lines[2:]] == ["not here", "not here"]


def test_each_line_is_in_the_file_before_the_next_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "check.json"
    written = []

    def lines(*_: object) -> Iterator[Line]:
        yield passed("one")
        written.extend(line["name"] for line in json.loads(out.read_text())["lines"])
        yield passed("two")

    monkeypatch.setattr(check, "fact_lines", lines)
    monkeypatch.setattr(sys, "argv", ["check", str(out), "facts"])
    with pytest.raises(SystemExit):
        check.main()
    assert written == ["one"]
    assert (tmp_path / "check.txt").read_text().endswith("2 pass, 0 fail, 0 not here\n")
