"""The terminal shows what was written, whatever the words look like."""

import re
from pathlib import Path

import pytest

from scaling import __version__
from scaling.cli import show
from scaling.cli.options import print_table
from scaling.errors import grouped_reasons
from scaling.run.price import Price
from scaling.study.load import load_study
from tests.plans import fitting_plan
from tests.run.test_planning import study_of


def test_a_folder_that_is_nowhere_is_named_as_it_was_given(refusal):
    assert refusal("tabulate", ".", "--sql", "nowhere").startswith("nowhere: holds no .sql file")


@pytest.mark.parametrize(("exclusive", "hours"), [(False, "0.5"), (True, "2.0 GPU-hours of whole")])
def test_the_cost_is_what_is_requested(config, write_study, capsys, exclusive, hours):
    """Two GPUs of a node of eight for ten minutes of steps and five of start-up."""
    limit = {"time_limit_s": 600.0}
    axes = {"world_size": 2, "global_batch_size": 8}
    study = study_of(config, write_study, measure=limit, exclusive=exclusive, **axes)
    planned = fitting_plan(study)
    (asked,) = [point.allocation for point in planned.points]
    assert (asked.nodes, asked.ranks_per_node, asked.minutes) == (1, 2, 15)
    show.show_plan(study, planned, None)
    said = capsys.readouterr().out
    assert f"at most 15 min 00 s, {hours}" in said


def test_repeats_that_only_contenders_get_are_not_counted_as_points(config, write_study, capsys):
    """They come on top, as the sentence below the table says."""
    once = study_of(config, write_study, measure={})
    few = study_of(config, write_study, measure={"repeats": {"at_most": 3, "for": "contenders"}})
    one = study_of(config, write_study, measure={"repeats": {"at_most": 1, "for": "contenders"}})
    shown = []
    for study in (once, few, one):
        show.show_plan(study, fitting_plan(study), None)
        shown.append(capsys.readouterr().out)
    on_top = "repeats of contenders come on top: up to 3 runs of a layout\n"
    assert shown[1] == shown[0] + on_top
    assert shown[2] == shown[0]


def test_a_plan_of_nine_sizes_can_be_read_in_eighty_columns(capsys):
    """A line for each size: beside each other they would cut the models' names to three letters."""
    study = load_study(Path("config/studies/hardware_scaling.yaml"), Path("config"))
    show.show_plan(study, fitting_plan(study), None)
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("llama2_13b", "llama2_70b", "tinyllama_1b"))
    assert "│ 2048 GPUs │" in printed


HEADS = ("GPUs", "layout", "tokens/s", "memory left")
BODY = [(8, "tp2 " * 12, "81,866", "21 %")]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_table_wider_than_a_terminal_names_the_columns_it_leaves_out(
    is_terminal, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(is_terminal)))
    print_table(HEADS, BODY)
    lines = lines_of(capsys)
    printed = "".join(lines)
    assert ("81,866" in printed, "21 %" in printed) == (True, not is_terminal)
    assert ("this terminal: memory left; a file or a pipe gets all" in printed) == is_terminal
    assert max(map(len, lines)) <= (80 if is_terminal else 90)


def lines_of(capsys):
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()


def test_reasons_are_counted_without_their_numbers_the_most_frequent_first():
    reasons = ["no peak", "row 2: tp=0", "no peak", "row 3: tp=0", "no peak", "row 9: tp=0"]
    wanted = [(3, "no peak"), (3, "such as row 2: tp=0")]
    assert grouped_reasons(reasons) == grouped_reasons(reversed(reasons)) == wanted
    many = grouped_reasons("abcdefgh")
    assert many[-1] == (2, "for 2 other reasons")
    assert sum(count for count, _ in many) == 8


def test_a_plan_says_why_points_cannot_be_predicted(config, write_study, capsys):
    study = load_study(write_study(), config)
    price = Price(
        points=1, step_gpu_hours=1.0, startup_gpu_hours=0.1, usd=None,
        unpredicted=("bf16 has no peak", "bf16 has no peak", "\x1b[2J"),
    )  # fmt: skip
    show.show_plan(study, fitting_plan(study), None, price)
    shown = capsys.readouterr().out
    assert "not predicted 2: bf16 has no peak" in shown
    assert "\x1b" not in shown  # no reason steers the terminal
    assert "[2J" in shown


def test_the_version_is_said(say):
    assert say("--version") == (0, f"scaling {__version__}\n", "")
