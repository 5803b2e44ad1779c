"""A dry run says which allocations would be asked for."""

import pytest
from snakemake_executor_plugin_submitit.packing import packs_of
from snakemake_executor_plugin_submitit.schedulers.slurm.resources import request_of

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


def test_points_of_as_many_nodes_share_allocations_as_the_profile_says():
    assert dry_run.allocations(POINTS, POINTS.keys(), SLURM) == [
        "15 points in 4 allocations:",
        "  2 of 1 nodes, 8 ranks on each: 10 points, at most 8 in one, of 29 to 70 min, "
        "at most 1.6 node-hours",
        "  2 of 2 nodes, 8 ranks on each: 5 points, at most 3 in one, of 122 to 182 min, "
        "at most 10.1 node-hours",
    ]
    assert dry_run.allocations(POINTS, ["a1"], SLURM)[0] == "1 points in 1 allocations:"


@pytest.mark.parametrize(("most", "minutes"), [(1, 240), (3, 240), (8, 62), (8, 300), (8, 5)])
def test_the_executor_sends_as_many(most, minutes):
    asked = ["--submitit-pack", str(most), "--submitit-pack-minutes", str(minutes)]
    waiting = [
        (request_of("measure", {"runtime": one.minutes, "nodes": one.nodes}), name)
        for name, one in POINTS.items()
    ]
    packs = packs_of(waiting, most=most, most_minutes=minutes)
    lines = dry_run.allocations(POINTS, POINTS.keys(), [*SLURM, *asked])
    assert lines[0] == f"15 points in {len(packs)} allocations:"
    longest = max(request.minutes for request, _ in packs)
    assert f"to {longest} min" in "".join(lines)


def test_without_a_scheduler_there_is_no_allocation_and_a_wrong_profile_is_a_sentence():
    assert dry_run.allocations(POINTS, POINTS, []) == []
    with pytest.raises(InputError, match=r"nowhere/config.yaml: is no profile of Snakemake"):
        dry_run.allocations(POINTS, POINTS, ["--profile", "nowhere"])


def test_files_of_jobs_are_left_out_unless_the_user_says_what_is():
    assert dry_run.quietly(["-n"]) == ["-n", "--quiet", "rules"]
    assert dry_run.quietly(["-n", "--quiet"]) == ["-n", "--quiet"]
