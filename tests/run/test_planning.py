"""A point that cannot fit is not started, the plan has its price, and its points an order."""

import dataclasses

import pytest
import yaml

from scaling.cluster.hardware import Slurm
from scaling.errors import InputError
from scaling.run import plan_writer, planning, price
from scaling.run.plan_writer import StudyPlan, random_fraction
from scaling.study import grid
from scaling.study.load import load_study
from scaling.study.plan_file import read_json_object
from scaling.study.point import point_from_json
from scaling.study.time_limits import TYPICAL_STARTUP_S, point_limits
from tests.conftest import CLUSTERS, MODELS
from tests.plans import fitting_plan

pytestmark = pytest.mark.slow


def study_of(config, write_study, *, measure=None, exclusive=False, **axes):
    models = {
        **MODELS,
        "huge": {**MODELS["mini"], "num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672},
        "near": {
            **MODELS["mini"], "num_layers": 16, "hidden_size": 2048, "num_heads": 16,
            "num_kv_heads": 16, "ffn_hidden_size": 5504, "vocab_size": 32000,
        },
    }  # fmt: skip
    (config / "models.yaml").write_text(yaml.safe_dump(models))
    priced = {**CLUSTERS, "there": {**CLUSTERS["there"], "usd_per_gpu_hour": 2.0}}
    priced["there"]["slurm"] = {"exclusive": exclusive}
    (config / "clusters.yaml").write_text(yaml.safe_dump(priced))
    gpus = {"cluster": "there", "world_size": 8, "precision": "bf16", "zero_stage": 1}
    path = write_study(axes={**gpus, **axes}, measure=measure or {})
    return load_study(path, config)


def with_longest_job(study, minutes):
    """The study on clusters whose jobs are at most so long."""
    clusters = {
        name: dataclasses.replace(cluster, slurm=Slurm(max_minutes=minutes))
        for name, cluster in study.clusters.items()
    }
    return dataclasses.replace(study, clusters=clusters)


@pytest.mark.parametrize("measure_oom", [True, False])
def test_a_point_far_beyond_the_gpus_memory_is_refused_with_the_parts(
    config, write_study, measure_oom
):
    measure = {"measure_oom": measure_oom}
    planned = fitting_plan(study_of(config, write_study, model=["mini", "huge"], measure=measure))
    assert [point.model for point in planned.points] == ["huge", "mini"][not measure_oom :]
    assert [refused.model for refused in planned.refusals] == ["huge"] * (not measure_oom)
    for word in ("predicted memory", "weights", "optimizer", "measure_oom: true"):
        assert all(word in refused.reason for refused in planned.refusals)


def test_a_rehearsal_refuses_what_the_formulas_leave_undecided(config, write_study):
    near = {"micro_batch_size": 12, "global_batch_size": 96, "seq_length": 4096}
    study = study_of(config, write_study, model=["mini", "near"], **near)
    planned = grid.expand_grid(study)
    assert len(planning.fit(study, planned).points) == 2
    kept = planning.fit(study, planned, lambda points: [100e9 for _ in points])
    assert {point.model for point in kept.points} == {"mini"}
    (refused,) = kept.refusals
    assert refused.reason.startswith("rehearsed memory 96.2 GiB is")
    kept = planning.fit(study, planned, lambda points: [60e9 for _ in points])
    assert len(kept.points) == 2


def test_a_points_limits_follow_its_predicted_step_time_and_its_id_does_not(config, write_study):
    (point,) = fitting_plan(study_of(config, write_study)).points
    assert point.expected_step_s > 0
    steps = (point.warmup_steps, point.measured_steps)
    assert point.time_limit_s == point_limits(point.expected_step_s, *steps, None)[0]
    assert point_from_json(point.to_json()) == point

    (bound,) = fitting_plan(study_of(config, write_study, measure={"time_limit_s": 60.0})).points
    assert (bound.time_limit_s, bound.point_id) == (60.0, point.point_id)


@pytest.mark.parametrize("gpu", [True, False])
def test_a_point_longer_than_the_longest_job_is_refused(config, write_study, gpu):
    made = study_of(config, write_study) if gpu else load_study(write_study(), config)
    with pytest.raises(InputError, match=r"its job may take \d+ minutes, and one of cluster"):
        fitting_plan(with_longest_job(made, 15))
    assert fitting_plan(with_longest_job(made, 60)) == fitting_plan(made)


def test_ranks_on_a_cpu_are_never_refused_for_memory(config, write_study):
    study = load_study(write_study(), config)
    planned = grid.expand_grid(study)
    assert planning.fit(study, planned) == planned


@pytest.mark.parametrize(("most", "limit_s"), [(60, 300.0), (14, 120.0), (12, None)])
def test_the_longest_job_of_the_cluster_bounds_the_probe_too(config, write_study, most, limit_s):
    study = load_study(write_study(probe=True), config)

    probe = planning.plan_probe(with_longest_job(study, most), fitting_plan(study))

    assert (probe.time_limit_s if probe else None) == limit_s
    assert probe is None or probe.allocation.minutes + 2 <= most


def test_probes_run_on_gpus_by_default_and_nowhere_if_the_study_says_so(
    config, write_study, monkeypatch
):
    def probed(**changes):
        study = load_study(write_study(**changes), config)
        return planning.plan_probe(study, fitting_plan(study))

    gpus = {"cluster": "there", "world_size": [8, 16], "precision": "bf16", "zero_stage": 1}
    gpus["global_batch_size"] = 16
    assert probed() is None
    assert probed(probe=True).world_size == 2
    assert probed(axes=gpus).world_size == 16
    assert probed(axes=gpus, probe={"world_size": 8}).world_size == 8
    assert probed(axes=gpus, probe=False) is None
    monkeypatch.chdir(config.parent)
    predicted = planning.plan_study(str(write_study(axes=gpus, mode="predict")))
    assert predicted.probe_plan is None
    with pytest.raises(InputError, match=r"probe\.world_size=12: must be at most 8 or whole nodes"):
        probed(axes=gpus, probe={"world_size": 12})


HUGE = {
    "model": "huge", "world_size": 8, "zero_stage": 0, "global_batch_size": 64,
    "micro_batch_size": [1, 2, 4],
}  # fmt: skip


def test_only_the_smallest_micro_batch_that_does_not_fit_takes_a_start(config, write_study):
    study = study_of(config, write_study, measure={"measure_oom": True}, **HUGE)
    plan = fitting_plan(study)
    one = price.price_of(study, plan)
    assert (one.points, one.step_gpu_hours) == (0, 0.0)
    assert one.startup_gpu_hours == pytest.approx(8 * TYPICAL_STARTUP_S / 3600)


def test_twins_run_by_micro_batch_and_all_points_in_the_seeds_order(config, write_study, tmp_path):
    choices = {"world_size": 8, "global_batch_size": 64, "micro_batch_size": [4, 1, 2]}
    study = study_of(config, write_study, model="mini", tp=[1, 2], zero_stage=[1, 3], **choices)
    plan = grid.expand_grid(study)
    planned = StudyPlan(study=study, folder=tmp_path, plan=plan, probe_plan=None, made_from="")
    plan_writer.write_plan(planned)
    order = list(read_json_object(tmp_path / "plan.json")["points"])
    points = {point.point_id: point for point in plan.points}
    ran: dict[tuple[int, int], list[int]] = {}
    for name in order:
        layout = points[name].layout
        ran.setdefault((layout.tp, layout.zero_stage), []).append(layout.micro_batch_size)
    assert set(map(tuple, ran.values())) == {(1, 2, 4)}
    # families are drawn: their places are those of the drawn points
    seed = study.measure.seed
    drawn = sorted(points, key=lambda name: random_fraction(seed, name))
    family = {name: (point.layout.tp, point.layout.zero_stage) for name, point in points.items()}
    assert [family[name] for name in order] == [family[name] for name in drawn]


def test_a_point_that_comes_moves_no_other_in_the_random_order():
    def shuffled(names, seed, purpose="order"):
        return sorted(names, key=lambda name: random_fraction(seed, name, purpose))

    names = [f"p{number}" for number in range(40)]
    orders = [shuffled(names, 1), shuffled(names, 2), shuffled(names, 1, "in full")]
    assert len({tuple(order) for order in [names, *orders]}) == 4
    assert [name for name in shuffled([*names, "another"], 1) if name in names] == orders[0]
