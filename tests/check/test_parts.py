"""The check as a whole: what is known is written, and what fails ends nothing else."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from scaling.check import __main__ as check
from scaling.check.lines import Line, pass_or_fail, to_text
from scaling.check.training import Machine


def passed(name: str) -> Line:
    return pass_or_fail(name, passes=True, said="")


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


@pytest.mark.parametrize(
    ("device", "gpus", "named"),
    [
        ("cpu", 0, ["one rank", "several ranks (gloo, on the CPU)"]),
        ("cuda", 1, ["one rank on the GPU", "several ranks (gloo, on the CPU)"]),
        ("cuda", 8, ["one rank on the GPU", "several ranks"]),
    ],
)
def test_a_machine_trains_on_the_devices_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, gpus: int, named: list[str]
) -> None:
    trained = []

    def lines(machine: Machine, _: object, where: torch.device) -> list[Line]:
        trained.append((machine.gpu, where.type))
        return [passed("training")]

    monkeypatch.setattr(check, "warm_server", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(check, "training_lines", lines)
    monkeypatch.setattr(check, "_gpu_here", lambda _: "h100-80gb")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for name in ("memory_lines", "host_lines", "outcome_lines"):
        monkeypatch.setattr(check, name, lambda *_: [])
    monkeypatch.setattr(check, "trace_line", lambda _: passed("trace"))
    parts = check._training(torch.device(device), tmp_path)
    lines_of = check.checked(parts, is_late=lambda: False)
    assert [line.section for line in lines_of if line.name == "training"] == named
    on_gpu = ("h100-80gb", "cuda")
    assert trained == [on_gpu if "CPU" not in name and gpus else ("cpu", "cpu") for name in named]


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


LINES = [
    Line("cores", "pass", 1024, said="that this process may use", section="facts"),
    Line("shared memory", "fail", 0.0625, "GiB", "at least 1 GiB", section="facts"),
    Line("energy", "not here", said="this machine has no GPU", section="meters"),
]


def test_a_page_has_every_line_with_its_number_and_counts_them() -> None:
    assert to_text(LINES) == (
        "facts\n"
        "  pass      cores          1,024  that this process may use\n"
        "  fail      shared memory  0.0625 GiB  at least 1 GiB\n"
        "\n"
        "meters\n"
        "  not here  energy         this machine has no GPU\n"
        "\n"
        "1 pass, 1 fail, 1 not here\n"
    )
