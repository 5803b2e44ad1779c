"""Rehearsed memory is kept in the user's cache, and a command rehearses a few layouts only."""

import contextlib
import dataclasses
from types import SimpleNamespace

import pytest

from scaling.check import rehearsed
from scaling.check.rehearsed import MOST, rehearser
from tests.points import tiny_point

POINT = tiny_point(dp=2, zero_stage=1)


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """The ranks that were rehearsed, each of 7 bytes, in a home of this test's own."""
    ranks: list[int] = []

    def memories(_, asked, *, shallow):
        assert shallow
        ranks.extend(rank for _, of_point in asked for rank in of_point)
        return [[SimpleNamespace(peak_bytes=7 + r) for r in of_point] for _, of_point in asked]

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(rehearsed, "rehearsals", lambda _: contextlib.nullcontext("process"))
    monkeypatch.setattr(rehearsed, "memories_of", memories)
    return ranks


def bytes_of(*points, say=lambda _: None):
    with rehearser(say) as fullest_bytes:
        return fullest_bytes(points)


def test_a_layout_is_rehearsed_once_for_all_its_points(ran):
    again = dataclasses.replace(POINT, point_id="another", seed=1, measured_steps=99)
    assert bytes_of(POINT, again) == [7, 7]
    assert bytes_of(POINT) == [7]
    assert ran == [0]


def test_the_fullest_stage_counts_and_another_layout_is_another(ran):
    piped = tiny_point(pp=2, gradient_accumulation_steps=2)
    assert bytes_of(POINT, piped) == [7, 8]
    assert ran == [0, 0, 1]


def test_without_a_listener_only_the_cache_is_read(ran):
    assert bytes_of(POINT, say=None) == [None]
    bytes_of(POINT)
    assert bytes_of(POINT, say=None) == [7]


def test_changed_training_code_is_rehearsed_anew(ran, monkeypatch):
    bytes_of(POINT)
    monkeypatch.setattr(rehearsed, "_code", lambda: ["other"])
    assert bytes_of(POINT, say=None) == [None]


def test_a_command_rehearses_few_layouts_and_says_so_once(ran):
    said: list[str] = []
    points = [tiny_point(dp=dp) for dp in range(2, MOST + 5)]
    found = bytes_of(*points, say=said.append)
    assert [one is None for one in found] == [False] * MOST + [True] * 3
    assert len(said) == MOST + 1
    assert said[0] == f"rehearsing 2 GPUs, {points[0].layout.label}"
    assert "stay predicted" in said[-1]


def test_a_failed_rehearsal_is_said_and_kept_nowhere(ran, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("rank 0: no torch")

    monkeypatch.setattr(rehearsed, "memories_of", fails)
    said: list[str] = []
    assert bytes_of(POINT, say=said.append) == [None]
    assert said[-1] == "not rehearsed: rank 0: no torch"
    assert bytes_of(POINT, say=None) == [None]


def test_one_failed_rehearsal_leaves_the_others_of_its_call(ran, monkeypatch):
    broken, all_of = tiny_point(dp=4), vars(rehearsed)["memories_of"]

    def fails(rehearse, asked, *, shallow):
        if any(point == broken for point, _ in asked):
            raise RuntimeError("no torch")
        return all_of(rehearse, asked, shallow=shallow)

    monkeypatch.setattr(rehearsed, "memories_of", fails)
    said: list[str] = []
    assert bytes_of(POINT, broken, say=said.append) == [7, None]
    assert said[-1] == "not rehearsed: no torch"


def test_a_layout_that_cannot_be_counted_stays_predicted(ran):
    assert bytes_of(tiny_point(compile=True)) == [None]
    assert ran == []
