"""Rehearsed memory is kept in the user's cache, and a command rehearses a few layouts only."""

import contextlib
import dataclasses

import pytest

from scaling.check import rehearsed
from scaling.check.rehearsed import MOST, rehearser
from scaling.layout.layout import Layout
from tests.points import tiny_point

POINT = tiny_point(dp=2, zero_stage=1)


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """The layouts that were rehearsed, of 7 bytes and their rank, in a home of this test's own."""
    layouts: list[Layout] = []

    def memories(asked):
        layouts.extend(point.layout for point, *_ in asked)
        return [memory(7 + rank) for _, rank, _ in asked]

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(rehearsed, "rehearsals", lambda _: contextlib.nullcontext(memories))
    return layouts


def memory(size):
    phases = {"forward": {"peak_bytes": size, "live_bytes": 0}}
    return {"peak_bytes": size, "phases": phases, "spans": {"forward": size}, "owners": []}


def bytes_of(*points, say=lambda _: None):
    with rehearser(say) as fullest_bytes:
        return fullest_bytes(points)


def test_a_layout_is_rehearsed_once_for_all_its_points(ran):
    again = dataclasses.replace(POINT, point_id="another", seed=1, measured_steps=99)
    assert bytes_of(POINT, again) == [7, 7]
    assert bytes_of(POINT) == [7]
    assert ran == [POINT.layout]


def test_layouts_that_need_the_same_rehearsals_share_them(ran):
    said: list[str] = []
    replicas = [tiny_point(dp=dp, micro_batch_size=1, zero_stage=0) for dp in (2, 4, 8)]
    assert bytes_of(*replicas, say=said.append) == [7, 7, 7]
    sharded = [tiny_point(dp=dp, micro_batch_size=1, zero_stage=3) for dp in (32, 64)]
    assert bytes_of(*sharded, say=said.append) == [7, 7]
    assert [layout.dp for layout in ran] == [2, 8, 16]
    assert [line.split(",")[0] for line in said] == ["rehearsing 2 GPUs", "rehearsing 32 GPUs"]


def test_the_fullest_stage_counts_and_another_layout_is_another(ran):
    piped = tiny_point(pp=2, gradient_accumulation_steps=2)
    assert bytes_of(POINT, piped) == [7, 8]
    assert ran == [POINT.layout, piped.layout, piped.layout]


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
    points = [tiny_point(dp=dp, zero_stage=1) for dp in range(2, MOST + 5)]
    found = bytes_of(*points, say=said.append)
    assert [one is None for one in found] == [False] * MOST + [True] * 3
    assert len(said) == MOST + 1
    assert said[0] == f"rehearsing 2 GPUs, {points[0].layout.label}"
    assert "stay predicted" in said[-1]


@pytest.fixture
def broken(ran, monkeypatch):
    """A point whose rehearsal fails, and all others of its call with it."""
    point = tiny_point(dp=4, zero_stage=1)
    works = vars(rehearsed)["rehearsals"](point).__enter__()

    def fails(asked):
        if point in [one for one, *_ in asked]:
            raise RuntimeError("no torch")
        return works(asked)

    monkeypatch.setattr(rehearsed, "rehearsals", lambda _: contextlib.nullcontext(fails))
    return point


def test_a_failed_rehearsal_is_said_and_kept_nowhere(broken):
    said: list[str] = []
    assert bytes_of(broken, say=said.append) == [None]
    assert said[-1] == "not rehearsed: no torch"
    assert bytes_of(broken, say=None) == [None]


def test_one_failed_rehearsal_leaves_the_others_of_its_call(broken):
    said: list[str] = []
    assert bytes_of(POINT, broken, say=said.append) == [7, None]
    assert said[-1] == "not rehearsed: no torch"


def test_a_layout_that_cannot_be_counted_stays_predicted(ran):
    points = [tiny_point(compile=True), tiny_point(engine="megatron", zero_stage=1)]
    assert bytes_of(*points) == [None, None]
    assert ran == []
