"""Resources of a rule become options of sbatch."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snakemake_executor_plugin_submitit.request import MARGIN_MIN, RequestError, together
from snakemake_executor_plugin_submitit.schedulers.slurm.resources import request_of
from snakemake_executor_plugin_submitit.schedulers.slurm.scheduler import submitit_parameters
from snakemake_executor_plugin_submitit.submitting import packs_of

GOLDEN = Path(__file__).parent / "golden"


def sbatch_file(**resources):
    """The text that submitit hands to sbatch for a pack of four."""
    from submitit.slurm.slurm import _make_sbatch_string

    request = request_of("measure", {**resources, "runtime": 4 * resources["runtime"]})
    parameters = submitit_parameters(request, name="measure p +3", comment="snakemake in study, b")
    return _make_sbatch_string(command="exec python pack", folder="/shared/b", **parameters)


def test_two_whole_nodes_with_everything_a_site_may_ask_for():
    text = sbatch_file(
        runtime=12,
        nodes=2,
        tasks_per_node=8,
        gpus_per_node=8,
        cpus_per_task=6,
        mem_mb=0,
        slurm_partition="gpu",
        slurm_account="ml",
        slurm_qos="normal",
        slurm_constraint="h100",
        slurm_reservation="sweep",
        slurm_dependency="afterok:1234",
        slurm_exclusive=1,
        slurm_extra="--exclude=n7 --mail-type=FAIL --switches=1",
        slurm_setup="module load cuda/12.8\nsource site.sh",
    )
    assert text == (GOLDEN / "two_nodes.sh").read_text()


def test_hosts_that_a_rule_leaves_out_join_those_of_the_site():
    text = sbatch_file(runtime=5, slurm_exclude="n1,n2", slurm_extra="--exclude=n7")
    assert "#SBATCH --exclude=n7,n1,n2\n" in text
    assert "#SBATCH --exclude=n1\n" in sbatch_file(runtime=5, slurm_exclude="n1")
    assert "exclude" not in sbatch_file(runtime=5, slurm_exclude="")


def test_half_a_node_by_gres():
    text = sbatch_file(runtime=5, gres="gpu:a100:4", tasks_per_node=4, mem_mb=250_000)
    assert text == (GOLDEN / "half_a_node.sh").read_text()


@pytest.mark.parametrize(
    ("resources", "sentence"),
    [
        ({}, "rule r: resource runtime=None: every job needs a time limit"),
        ({"runtime": 0}, "every job needs a time limit"),
        ({"runtime": 5, "nodes": "two"}, "resource nodes='two': give a whole number"),
        ({"runtime": 5, "nodes": -1}, "resource nodes=-1: give a whole number"),
        ({"runtime": 5, "slurm_acount": "ml"}, "slurm_acount='ml': did you mean slurm_account?"),
        ({"runtime": 5, "gpus_per_node": 2, "gres": "gpu:2"}, "give one of them"),
        ({"runtime": 5, "slurm_extra": "-n4"}, "not '-n4'"),
        ({"runtime": 5, "slurm_extra": "--licenses='a"}, "'a\": No closing quotation"),
        ({"runtime": 5, "slurm_extra": "--time=9"}, "--time is set by the executor"),
        ({"runtime": 5, "gpu": 3, "nodes": 2}, "gpu=3 and nodes=2 do not match"),
        ({"runtime": 5, "gpu": 1, "gpus_per_node": 1}, "gpu=1 and gpus_per_node or gres: give one"),
        ({"runtime": 5, "gpu_manufacturer": "amd"}, "use gpu_model or constraint"),
        ({"runtime": 5, "clusters": "east"}, "set SLURM_CLUSTERS for the whole run"),
    ],
)
def test_a_resource_that_cannot_be_asked_for_is_one_sentence(resources, sentence):
    with pytest.raises(RequestError, match=r"^rule r: ") as refusal:
        request_of("r", resources)
    assert sentence in str(refusal.value)


@given(
    jobs=st.lists(st.sampled_from([3, 10, 45]), max_size=60),
    most=st.integers(1, 9),
    most_minutes=st.none() | st.integers(1, 120),
)
def test_packs_hold_every_job_once_and_stay_within_their_limits(jobs, most, most_minutes):
    waiting = [(request_of("r", {"runtime": runtime}), n) for n, runtime in enumerate(jobs)]
    packs = packs_of(waiting, most=most, most_minutes=lambda _: most_minutes)
    assert sorted(job for _, pack in packs for job in pack) == list(range(len(jobs)))
    for request, pack in packs:
        assert 1 <= len(pack) <= most
        assert request.minutes == sum(jobs[job] for job in pack) + MARGIN_MIN
        assert len(pack) == 1 or most_minutes is None or request.minutes <= most_minutes


def test_jobs_of_unequal_requests_never_share_an_allocation():
    requests = [
        request_of("r", {"runtime": 5, **more})
        for more in ({}, {"nodes": 2}, {"slurm_qos": "q"}, {"slurm_setup": "x"}, {"srun_args": "y"})
    ]
    packs = packs_of(
        [(request, n) for n, request in enumerate(requests * 2)],
        most=9,
        most_minutes=lambda _: None,
    )
    assert [pack for _, pack in packs] == [[n, n + 5] for n in range(5)]


@pytest.mark.parametrize(
    ("resources", "threads", "options"),
    [
        ({}, 4, {"cpus-per-task": 4}),
        ({"cpus_per_task": 2}, 4, {"cpus-per-task": 2}),
        ({"tasks_per_node": 8}, 4, {"ntasks-per-node": 8}),
        ({"tasks": 6, "nodes": 3}, 1, {"nodes": 3, "ntasks": 6}),
        ({"gpu": 4}, 1, {"gpus-per-node": 4}),
        ({"gpus": 4, "nodes": 2, "gpu_model": "h100"}, 1, {"nodes": 2, "gpus-per-node": "h100:2"}),
        ({"mem_mb": 9, "mem_mb_per_cpu": 100}, 1, {"mem-per-cpu": "100M"}),
        ({"qos": "long", "constraint": "a|b"}, 1, {"qos": "long", "constraint": "a|b"}),
    ],
)
def test_snakemakes_own_names_of_resources_are_heeded(resources, threads, options):
    request = request_of("r", {"runtime": 5, **resources}, threads)
    assert request.options == {"nodes": 1, **options}


def test_a_group_asks_for_the_most_of_its_jobs_and_the_sum_of_their_times():
    small = request_of("r", {"runtime": 5, "mem_mb": 900})
    large = request_of("r", {"runtime": 7, "mem_mb": 1000, "nodes": 2, "gpus_per_node": 4})
    both = together("g", [small, large])
    assert both.runtime_min == 12
    assert both.options == {"nodes": 2, "gpus-per-node": 4, "ntasks-per-node": 4, "mem": "1000M"}
    other = request_of("r", {"runtime": 5, "slurm_partition": "a"})
    with pytest.raises(RequestError, match="group g: its jobs differ in partition"):
        together("g", [small, other])
