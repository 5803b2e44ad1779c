"""Points become allocations of a real Slurm."""

import stat

import pytest

pytestmark = pytest.mark.slurm


def test_points_of_equal_resources_share_an_allocation(study):
    where = "srun bash -c 'echo $SLURM_PROCID $SLURM_NODEID $SLURM_JOB_ID $CUDA_VISIBLE_DEVICES'"
    wide = {"nodes": 2, "tasks_per_node": 2, "gpus_per_node": 2, "command": where}
    study.points(a=wide, b=wide, c=wide, d={"command": "echo here"})
    assert study.run("--submitit-pack", "3") == 0, study.said
    assert len(study.jobs()) == 2
    assert study.starts() == {"a": 1, "b": 1, "c": 1, "d": 1}
    ranks = [
        sorted(line.split() for line in (study.folder / f"out/{name}.txt").read_text().splitlines())
        for name in "abc"
    ]
    job = ranks[0][0][2]
    geometry = [["0", "0"], ["1", "0"], ["2", "1"], ["3", "1"]]
    assert ranks == [[[*place, job, "0,1"] for place in geometry]] * 3


def test_a_killed_point_leaves_the_rest_of_its_pack_alone(study):
    fatal = "srun bash -c 'kill -KILL $$'; sleep 0"
    study.points(a={"seconds": 1}, b={"command": f"set -e; {fatal}"}, c={"seconds": 1})
    assert study.run("--submitit-pack", "3") == 1
    assert study.done() == {"a", "c"}
    assert "exit code 137" in study.said
    assert len(study.jobs()) == 1
    study.points(a={"seconds": 1}, b={"seconds": 0}, c={"seconds": 1})
    assert study.run("--submitit-pack", "3") == 0
    assert study.done() == {"a", "b", "c"}
    assert study.starts() == {"a": 1, "b": 2, "c": 1}


def test_a_point_starts_after_the_job_it_depends_on_and_set_up_lines(study):
    first = study.lab.submit(command=f"sleep 5; echo first >> {study.folder}/starts")
    greets = {"slurm_setup": "export GREETING=hello", "command": "echo $GREETING"}
    study.points(a={"slurm_dependency": f"afterok:{first}", **greets})
    assert study.run() == 0, study.said
    assert (study.folder / "starts").read_text().split() == ["first", "a"]
    assert (study.folder / "out/a.txt").read_text() == "hello\n"


def test_a_job_says_what_it_is_and_its_pickles_are_private(study):
    study.points(a={"slurm_extra": "--no-requeue"}, b={"slurm_extra": "--no-requeue"})
    assert study.run("--submitit-pack", "2", "--submitit-keep-folders") == 0, study.said
    (job,) = study.jobs()
    told = study.lab.ask("scontrol", "show", "job", job)
    assert "JobName=point a +1\n" in told
    assert "Comment=snakemake in study, " in told
    assert "Requeue=0" in told
    (batch,) = (study.folder / ".snakemake/submitit").glob("2*")
    pickles = list(batch.glob("*_submitted.pkl"))
    assert pickles
    assert [stat.S_IMODE(p.stat().st_mode) for p in (batch, *pickles)] == [
        0o700,
        *[0o600] * len(pickles),
    ]
