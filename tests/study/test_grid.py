"""A study becomes points and refusals."""

import hashlib
import itertools
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaling.errors import InputError
from scaling.study import grid
from scaling.study.load import load_study
from tests.processes import modules_after


@pytest.fixture
def planned(config, write_study):
    def make(**changes):
        return grid.expand_grid(load_study(write_study(**changes), config))

    return make


def test_the_grid_is_the_product_of_each_block(planned):
    made = planned(layouts=[{"zero_stage": [0, 1, 3]}, {"tp": 2, "world_size": 2}])
    found = {(p.layout.world_size, p.layout.tp, p.layout.zero_stage) for p in made.points}
    assert found == {(n, 1, z) for n in (1, 2) for z in (0, 1, 3)} | {(2, 2, 0)}


def test_a_combination_named_twice_is_one_point(planned):
    assert len(planned(layouts=[{"zero_stage": [1, 1]}, {"zero_stage": 1}]).points) == 2


def test_a_shard_group_of_all_replicas_is_no_layout_beside_plain_zero(planned):
    plain = planned(layouts=[{"zero_stage": 3}]).points
    both = planned(layouts=[{"zero_stage": 3, "zero_shard_size": [None, 2]}])
    assert [point.point_id for point in both.points] == [point.point_id for point in plain]
    (refused,) = both.refusals  # one rank
    assert "is not divisible by zero_shard_size=2" in refused.reason


def test_a_shard_group_of_all_replicas_stays_without_plain_zero(planned):
    (only,) = planned(layouts=[{"zero_stage": 3, "zero_shard_size": 2}]).points
    assert (only.layout.dp, only.layout.zero_shard_size) == (2, 2)


def test_weak_scaling_keeps_the_batch_of_a_gpu(config, write_study):
    path = write_study(kind="weak")
    text = path.read_text().replace("global_batch_size: 8", "batch_size_per_gpu: 3")
    path.write_text(text)
    points = grid.expand_grid(load_study(path, config)).points
    assert [(p.layout.world_size, p.layout.global_batch_size) for p in points] == [(1, 3), (2, 6)]


def test_every_impossible_combination_is_kept_with_its_sentence(planned):
    made = planned(layouts=[{"tp": [1, 2]}])
    (refused,) = made.refusals
    assert (refused.world_size, refused.tp) == (1, 2)
    assert refused.reason == "world_size=1 is not divisible by tp=2 x pp=1 x cp=1 = 2"


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        ({"world_size": [1, 16]}, "more than the 8 GPUs of cluster here (2 nodes of 4)"),
        ({"world_size": [1, 6]}, "world_size=6 is not whole nodes of 4 GPUs"),
        ({"micro_batch_size": [1, 3]}, "not divisible by micro_batch_size=3 x dp=1"),
    ],
)
def test_a_size_that_does_not_fit_is_refused(planned, axes, reason):
    assert any(reason in refusal.reason for refusal in planned(axes=axes).refusals)


def test_a_too_large_grid_is_refused_before_it_is_expanded(planned, monkeypatch):
    monkeypatch.setattr(itertools, "product", None)
    many = list(range(1, 1001))
    with pytest.raises(InputError, match="spans 2,000,000 combinations, more than the 100,000"):
        planned(axes={"seq_length": many, "global_batch_size": many})


def test_null_in_a_block_overrides_the_axis(planned):
    def sharded(**block):
        axes = {"world_size": 4, "zero_stage": 3, "zero_shard_size": 2}
        return [p.layout.zero_shard_size for p in planned(axes=axes, layouts=[block]).points]

    assert sharded() == [2]
    assert sharded(zero_shard_size=None) == [None]
    assert set(sharded(zero_shard_size=[None, 2])) == {None, 2}


def test_colliding_ids_are_made_longer_and_none_is_lost(planned, monkeypatch):
    alone = {p.world_size: p.point_id for p in planned().points}
    monkeypatch.setattr("scaling.study.grid.DIGEST", 0)  # repeats differ in the digest alone
    ids = [p.point_id for p in planned(measure={"repeats": 2}).points]
    assert len(set(ids)) == 2 * len(alone)
    for point_id in ids:
        assert re.fullmatch(r".*-[0-9a-f]{32}", point_id)
    assert all(any(long.startswith(short) for long in ids) for short in alone.values())


def test_a_left_out_later_key_measures_nothing_again(planned):
    # as ids were before there were steps that stop by themselves, short steps and contenders
    layouts = [{"zero_stage": [0, 1], "micro_batch_size": [1, 2]}]
    names = sorted(point.point_id for point in planned(layouts=layouts).points)
    assert hashlib.sha256("\n".join(names).encode()).hexdigest()[:16] == "9624317f4afbf26e"
    for measure in (
        {"measured_steps": 10},
        {"measured_steps": {"at_least": 10, "at_most": 10, "until": None}},
        {"accumulation": "full"},
        {"repeats": {"at_most": 1, "for": "contenders"}, "exclude_slow_nodes": False},
    ):
        again = planned(layouts=layouts, measure=measure).points
        assert sorted(point.point_id for point in again) == names
    (text,) = {p.to_json() for p in planned(axes={"world_size": 1}).points}
    assert not {"until", "at_least_steps", "accumulation"} & json.loads(text).keys()


def test_keys_that_change_what_is_measured_change_the_points_they_change(planned):
    axes = {"global_batch_size": 64, "world_size": 2, "micro_batch_size": [1, 16]}
    plain = planned(axes=axes).points
    short = planned(axes=axes, measure={"accumulation": "short"}).points
    # with micro-batches of 16 a step has two, and nothing is shorter
    same = {p.layout.micro_batch_size for p in plain if p.point_id in {s.point_id for s in short}}
    assert same == {16}
    stops = planned(axes=axes, measure={"measured_steps": {"until": 0.01, "at_most": 10}}).points
    assert not {p.point_id for p in plain} & {p.point_id for p in stops}


def test_contenders_repeats_count_towards_the_limit_of_points(planned):
    repeats = {"at_most": 5, "for": "contenders"}
    made = planned(measure={"repeats": repeats}, max_points=2)
    assert len(made.points) == 10
    assert len(planned(measure={"repeats": repeats}, max_points=2, mode="predict").points) == 2


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    world_size=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    tp=st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=2),
    pp=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=2),
    zero_stage=st.lists(st.sampled_from([0, 1, 2, 3]), min_size=1, max_size=2),
)
def test_every_combination_becomes_a_point_or_a_refusal(planned, world_size, tp, pp, zero_stage):
    block = {"world_size": world_size, "tp": tp, "pp": pp, "zero_stage": zero_stage}
    plain = {"world_size": 1, "tp": 1, "pp": 1, "zero_stage": 0}  # always runs
    made = planned(layouts=[plain, block])
    combinations = {tuple(plain.values()), *itertools.product(*block.values())}
    assert len(made.points) + len(made.refusals) == len(combinations)
    for point in made.points:
        assert point.layout.world_size in {1, *world_size}
        assert point.layout.global_batch_size == 8
    assert len({p.point_id for p in made.points}) == len(made.points)


def test_what_every_run_imports_leaves_scipy_to_who_fits():
    """Half a second of each `scaling plan`, which Snakemake starts where a plan may be stale."""
    rooms = "scaling.run.planning, scaling.run.rounds, scaling.cli.show"
    loaded = modules_after(f"import {rooms}")
    assert "scaling.predict.advise.rehearse" in loaded
    assert not {"scipy", "torch"} & loaded


def test_ids_of_points_that_were_measured_before_an_axis_existed_stay(planned):
    """Worked out by the version before zero_shard_size; another id would be measured again."""
    first = planned(axes={"world_size": 2}, layouts=[{"zero_stage": 3}]).points[0]
    assert first.point_id == "mini-g2-zero3-mbs1-flash2-fp32-475b29b2"


def test_clipping_makes_another_point_or_is_refused(planned):
    layouts = [{"zero_stage": [0, 1]}, {"pp": 2, "world_size": 2, "zero_stage": [0, 1]}]
    plain = planned(layouts=layouts)
    clipped = planned(layouts=layouts, measure={"gradient_clipping": 1.0})
    assert not {p.point_id for p in plain.points} & {p.point_id for p in clipped.points}
    assert {p.gradient_clipping for p in clipped.points} == {1.0}
    (refused,) = [r for r in clipped.refusals if "gradient_clipping=1" in r.reason]
    assert (refused.pp, refused.zero_stage) == (2, 0)
