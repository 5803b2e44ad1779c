"""The probes of a study, by hand and beside the groups that training makes."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from scaling.launch.probing import bus_factor
from scaling.layout.layout import Layout
from scaling.probe.plan import MIB, Group, plan_from_json, probe_plan
from scaling.train.parallel.groups import Place
from tests.points import tiny_point

degrees = st.sampled_from([1, 2, 3, 4])
layouts = st.builds(Layout, tp=degrees, cp=degrees, dp=degrees, pp=degrees, seq_length=st.just(32))


def groups_of_training(layout, *varied):
    """Ranks that share every coordinate but these, as scaling.train makes its groups."""
    found = {}
    for rank in range(layout.world_size):
        place = dataclasses.asdict(Place.of(rank, layout))
        fixed = tuple(value for name, value in place.items() if name not in varied)
        found.setdefault(fixed, []).append(rank)
    return sorted(tuple(ranks) for ranks in found.values())


@given(layouts)
def test_the_groups_probed_are_those_that_training_makes(layout):
    tp, cp, dp, pp = layout.tp, layout.cp, layout.dp, layout.pp
    for name, ranks, stride, varied in (
        ("tp", tp, 1, ["tp_rank"]),
        ("cp", cp, tp, ["cp_rank"]),
        ("data", cp * dp, tp, ["cp_rank", "dp_rank"]),
        ("pp", pp, tp * cp * dp, ["pp_rank"]),
    ):
        group = Group(name=name, ranks=ranks, stride=stride, at_once=True)
        assert sorted(group.members(layout.world_size)) == groups_of_training(layout, *varied)


def points(*layouts, gpus_per_node=8):
    return [tiny_point(gpus_per_node=gpus_per_node, **layout) for layout in layouts]


def shapes(plan):
    return {
        (t.group.name, t.group.ranks, t.group.stride, t.group.first, t.group.at_once)
        for t in plan.tasks
        if t.group
    }


def test_hpz_gathers_are_probed_in_their_own_groups():
    layout = {"dp": 4, "zero_stage": 3, "zero_shard_size": 2}
    plan = probe_plan(points(layout, gpus_per_node=4), world_size=4, time_limit_s=60)
    (once,) = {t.group for t in plan.tasks if t.group and t.group.name == "shard"} - {
        Group(name="shard", ranks=2, stride=1, at_once=False)
    }
    assert once.members(4) == [(0, 1), (2, 3)]
    kinds = {t.kind for t in plan.tasks if t.group and t.group.name == "shard"}
    assert kinds == {"all_gather"}


def test_one_node_and_two_tp_groups_that_run_alone_and_at_once():
    plan = probe_plan(points({"tp": 2, "dp": 2}, gpus_per_node=4), world_size=4, time_limit_s=60)
    assert shapes(plan) == {
        ("node", 4, 1, 0, False),
        ("tp", 2, 1, 0, False),
        ("tp", 2, 1, 0, True),
        ("data", 2, 2, 0, False),
        ("data", 2, 2, 0, True),
    }


def test_four_nodes_meet_in_pairs_with_both_neighbours():
    plan = probe_plan(points({"dp": 8}, gpus_per_node=2), world_size=8, time_limit_s=60)
    assert shapes(plan) == {
        ("node", 2, 1, 0, True),
        ("world", 8, 1, 0, False),
        ("node_pair", 2, 2, 0, True),
        ("node_pair", 2, 2, 2, True),
        ("data", 8, 1, 0, False),
    }
    (shifted,) = {t.group for t in plan.tasks if t.group and t.group.first}
    assert shifted.members(8) == [(2, 4), (3, 5)]


def test_the_gemms_are_those_of_a_layer_and_the_head_under_tp():
    # tiny: h 64, 8 heads and 4 kv heads of 8, ffn 96, vocabulary 256; 4 sequences of 32 tokens
    plan = probe_plan(
        points({"tp": 2, "dp": 2, "micro_batch_size": 4}), world_size=4, time_limit_s=60
    )
    found = {(t.m, t.n, t.k) for t in plan.tasks if t.kind == "gemm" and t.m == 128}
    squares = {(128, 128, 128)}
    assert found - squares == {
        (128, 32, 64),  # queries: 8 heads x 8 / 2
        (128, 16, 64),  # keys, values: 4 x 8 / 2
        (128, 64, 32),  # output
        (128, 48, 64),  # gate, up: 96 / 2
        (128, 64, 48),  # down
        (128, 128, 64),  # head: 256 / 2
    }


def test_an_8_bit_layout_has_its_16_bit_products_probed():
    eight, sixteen = (
        probe_plan(points({"dp": 1, "precision": name}), world_size=1, time_limit_s=60)
        for name in ("fp8", "bf16")
    )
    assert eight.tasks == sixteen.tasks
    assert {"gemm", "attention"} <= {task.kind for task in eight.tasks}


def test_an_optimizer_on_the_host_has_its_update_probed():
    def tasks(where):
        (point,) = points({"dp": 1, "zero_stage": 1, "optimizer_offload": where})
        return probe_plan([point], world_size=1, time_limit_s=60).tasks

    (extra,) = {*tasks("cpu")} - {*tasks("none")}
    assert (extra.kind, extra.message_bytes) == ("host_update", 16 * MIB)


def test_in_a_ring_a_rank_attends_to_its_tokens_with_all_its_heads():
    """With 8 heads 16 ranks of a ring may not leave one without any, whose rate would be 0."""
    ring = {"cp": 16, "cp_style": "ring", "dp": 1}
    plan = probe_plan(points(ring), world_size=16, time_limit_s=60)
    (task,) = [task for task in plan.tasks if task.kind == "attention"]
    assert (task.num_heads, task.num_kv_heads, task.seq_length) == (8, 4, 2)


def test_a_plan_survives_its_file_and_its_digest_changes_with_it():
    plan = probe_plan(points({"tp": 2, "dp": 2}), world_size=4, time_limit_s=60)
    assert plan_from_json(plan.to_json()) == plan
    assert dataclasses.replace(plan, world_size=2).digest != plan.digest


def test_a_study_that_was_probed_needs_no_other_probe():
    """The digest of a plan is kept beside its probes; another one would ask for them again."""
    asked = points({"tp": 2, "dp": 2}, {"dp": 4, "zero_stage": 3, "zero_shard_size": 2})
    assert probe_plan(asked, world_size=8, time_limit_s=60).digest == "37385f1b66c7d413"


def test_bus_bandwidth_is_nccl_tests():
    # 8 ranks: 1.75, 0.875 and 1 bytes on the bus for each byte of the message
    factors = {
        kind: bus_factor(kind, 8)
        for kind in (
            "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"
        )
    }  # fmt: skip
    assert factors == {
        "all_reduce": 1.75,
        "all_gather": 0.875,
        "reduce_scatter": 0.875,
        "all_to_all": 0.875,
        "broadcast": 1.0,
        "send_recv": 1.0,
    }
