"""A layout in the words of a sentence."""

import pytest

from scaling.layout.axes import AXES, DEFAULTS
from scaling.report.columns import COLUMNS, SENTENCE_COLUMNS
from scaling.report.sections.headline import (
    choice,
    degrees,
    differing_axes,
    layout_phrases,
    names_by_change,
    other_choices,
    shared_axes,
)


def layout(**choices):
    return {name: None for name in AXES if AXES[name].optional} | DEFAULTS | choices


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({}, "plain data parallelism"),
        ({"ep": 8}, "data parallelism"),
        ({"tp": 2}, "tensor parallel 2"),
        ({"pp": 2}, "two pipeline stages"),
        ({"pp": 16}, "16 pipeline stages"),
        ({"tp": 8, "pp": 9}, "tensor parallel 8 with 9 pipeline stages"),
        (
            {"tp": 4, "pp": 4, "cp": 2},
            "tensor parallel 4 with four pipeline stages and context parallel 2",
        ),
    ],
)
def test_degrees_are_said_in_words(choices, words):
    assert degrees(layout(**choices)) == words


@pytest.mark.parametrize(
    ("axis", "value", "words"),
    [
        ("zero_stage", 3, "ZeRO-3"),
        ("zero_shard_size", 8, "sharded inside the node"),
        ("zero_shard_size", 16, "sharded over 16"),
        ("micro_batch_size", 2, "micro-batch 2"),
        ("activation_checkpointing", "full", "full checkpointing"),
        ("activation_checkpointing", "none", "no checkpointing"),
        ("fused_norm", False, "no fused norm"),
    ],
)
def test_a_choice_is_said_in_words(axis, value, words):
    assert choice(layout(**{axis: value}), axis, 8) == words


def test_what_layouts_share_is_said_once_and_then_only_what_differs():
    one = layout(zero_stage=3, micro_batch_size=2)
    other = layout(zero_stage=3, micro_batch_size=1)
    assert layout_phrases([one, other], 8) == (
        "plain data parallelism",
        ["micro-batch 2", "micro-batch 1"],
    )
    staged = layout(zero_stage=1, pp=2, micro_batch_size=2)
    assert layout_phrases([one, staged], 8) == (
        "",
        ["plain data parallelism, ZeRO-3", "two pipeline stages, ZeRO-1"],
    )
    assert shared_axes([one], [other]) == ["zero_stage", "zero_shard_size", "micro_batch_size"]
    assert names_by_change([one, other, staged, layout(pp=2, zero_stage=3)], 8) == [
        "plain data parallelism", "micro-batch 1", "two pipeline stages", "ZeRO-3",
    ]  # fmt: skip


def test_published_layouts_that_differ_in_what_is_stated_alone_are_said_to_be_the_same_so_far():
    stated, unstated = layout(tp=8), layout(tp=8, zero_stage=None, sequence_parallel=None)
    assert names_by_change([stated, unstated, stated], 8) == [
        "tensor parallel 8", *["the same as far as stated"] * 2,
    ]  # fmt: skip


def test_how_stages_are_run_is_not_said_of_a_layout_without_stages():
    plain, staged = layout(virtual_stages=2), layout(pp=2, pipeline_schedule="interleaved")
    axes = ["pipeline_schedule", "virtual_stages"]
    assert other_choices(plain, axes, 8) == []
    assert other_choices(staged, axes, 8) == ["interleaved", "1 virtual stages"]


def test_what_is_not_known_differs_from_nothing_but_a_null_that_is_a_choice_does():
    assert differing_axes([layout(attention=None), layout(attention="flash2")]) == []
    assert differing_axes([layout(), layout(zero_shard_size=8)]) == ["zero_shard_size"]


def test_no_table_is_held_by_the_page_and_for_sentences_alone_at_once():
    assert not set(COLUMNS) & set(SENTENCE_COLUMNS)
    assert all(len(set(names)) == len(names) for names in (COLUMNS | SENTENCE_COLUMNS).values())
