"""A layout's name says what it has beyond the plainest one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.layout.axes import AXES, DEFAULTS, SETTING_AXES
from scaling.layout.names import PLAINEST, exact, layout_name

FUSED = ("fused_norm", "fused_rope", "fused_mlp", "fused_cross_entropy")


@pytest.mark.parametrize(
    ("choices", "name"),
    [
        ({}, PLAINEST),
        ({"precision": "fp32"}, f"{PLAINEST}, fp32"),
        ({"zero_stage": 3, "zero_shard_size": 8, "micro_batch_size": 2},
         "ZeRO-3 in node, micro-batch 2"),
        ({"zero_stage": 3, "zero_shard_size": 16}, "ZeRO-3 over 16"),
        ({"tp": 4, "pp": 2, "zero_stage": 1}, "tp 4, pp 2, ZeRO-1"),
        ({"zero_stage": 1, "attention": "cudnn"}, "ZeRO-1, cudnn attention"),
        ({"zero_stage": 1, "compile": True, "engine": "torch"}, "ZeRO-1, compiled, torch engine"),
        ({"zero_stage": 1, "compile": True, "precision": "fp8"}, "ZeRO-1, compiled, fp8"),
        ({"zero_stage": 1, "fused_cross_entropy": True}, "ZeRO-1, fused cross-entropy"),
        ({"zero_stage": 1, "fused_norm": True, "fused_mlp": True}, "ZeRO-1, fused norm + MLP"),
        ({"zero_stage": 1, **dict.fromkeys(FUSED, True)}, "ZeRO-1, fused kernels"),
        ({"zero_stage": 1, "pipeline_schedule": "interleaved", "virtual_stages": 2}, "ZeRO-1"),
        ({"zero_stage": 1, "attention": None, "micro_batch_size": None}, "ZeRO-1"),
    ],
)  # fmt: skip
def test_a_name_lists_what_a_layout_has(choices, name):
    assert layout_name(DEFAULTS | choices, gpus_per_node=8) == name


def values(axis):
    return st.sampled_from(axis.values) if axis.values else st.integers(1, 64)


@given(st.fixed_dictionaries({name: values(axis) for name, axis in AXES.items()}))
def test_no_name_says_what_a_layout_lacks(choices):
    name = layout_name(choices, 8)
    assert name
    assert not any(part.startswith("no ") or "none" in part for part in name.split(", "))


@given(st.fixed_dictionaries({name: values(axis) for name, axis in AXES.items()}), st.data())
def test_layouts_that_differ_have_names_that_differ(choices, data):
    """Degrees above 1, so that every choice has its effect."""
    choices |= {"tp": 2, "pp": 2, "cp": 2, "zero_stage": 1}
    axis = data.draw(st.sampled_from([name for name in AXES if name not in SETTING_AXES]))
    other = choices | {axis: data.draw(values(AXES[axis]).filter(lambda v: v != choices[axis]))}
    assert layout_name(choices, 8) != layout_name(other, 8)


def test_the_exact_axes_name_every_choice_that_is_stated():
    assert exact({"tp": 2, "fused_norm": False, "attention": None}) == "tp=2 fused_norm=false"
