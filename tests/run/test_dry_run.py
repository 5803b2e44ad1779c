"""A dry run says which allocations would be asked for."""

import pytest

from scaling.errors import InputError
from scaling.run import dry_run
from scaling.study.plan_file import Allocation
from tests.conftest import PROJECT

SLURM = ["--profile", str(PROJECT / "config/profiles/slurm")]
POINTS = {
    **{
        f"a{n}": Allocation(world_size=8, nodes=1, ranks_per_node=8, minutes=5 + n)
        for n in range(10)
    },
    **{f"b{n}": Allocation(world_size=16, nodes=2, ranks_per_node=8, minutes=60) for n in range(5)},
}


def test_points_of_as_many_nodes_share_allocations_as_the_profile_says(capfd):
    assert dry_run.describe_allocations(POINTS, POINTS.keys(), SLURM) == [
        "15 points in 4 allocations:",
        "  2 of 1 nodes, 8 ranks on each: 10 points, at most 8 in one, of 29 to 70 min, "
        "at most 1.6 node-hours",
        "  2 of 2 nodes, 8 ranks on each: 5 points, at most 3 in one, of 122 to 182 min, "
        "at most 10.1 node-hours",
    ]
    alone = [*SLURM, "--submitit-pack", "1"]
    first, *_ = dry_run.describe_allocations(POINTS, ["a1", "b1"], alone)
    assert first == "2 points in 2 allocations:"
    assert capfd.readouterr().err == ""  # Python warns of nothing


def test_without_a_scheduler_there_is_no_allocation_and_a_wrong_profile_is_a_sentence(tmp_path):
    assert dry_run.describe_allocations(POINTS, POINTS, []) == []
    # one that Snakemake has found in the user's own folder
    assert dry_run.describe_allocations(POINTS, POINTS, ["--profile", "elsewhere"]) == []
    (tmp_path / "config.yaml").write_text("executor: [")
    with pytest.raises(InputError, match=r"/config.yaml: is no profile of Snakemake"):
        dry_run.describe_allocations(POINTS, POINTS, ["--profile", str(tmp_path)])


@pytest.mark.parametrize(
    ("options", "asked"),
    [(["-n"], True), (["-np"], True), (["--dry-run"], True), (["--nolock"], False), ([], False)],
)
def test_a_dry_run_is_known_by_any_spelling_of_its_option(options, asked):
    assert dry_run.is_asked_for(options) is asked


def test_files_of_jobs_are_left_out_unless_the_user_says_what_is():
    assert dry_run.without_job_files(["-n"]) == ["-n", "--quiet", "rules"]
    for said in (["-n", "--quiet"], ["-n", "--quiet=all"], ["-n", "-q"]):
        assert dry_run.without_job_files(said) == said
