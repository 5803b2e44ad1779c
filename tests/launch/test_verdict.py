"""The verdict on a run, by the evidence of its ranks."""

import signal
from signal import SIGABRT, SIGHUP, SIGKILL, SIGTERM, SIGUSR2

import pytest

from scaling.launch.judge import Evidence, Verdict, verdict
from scaling.launch.start.rank_exits import exit_code_from_shell
from scaling.record.rank_files import RankExit, RankFailure

GONE = RankFailure(outcome="error", message="Connection closed by peer", failed_at=1.0)
FULL = RankFailure(outcome="oom", message="CUDA out of memory", failed_at=0.5)
OWN = RankFailure(outcome="error", message="ValueError: no such layer", failed_at=301.0)
BY_THE_KERNEL = RankExit(-SIGKILL, out_of_memory=True)
LOST = RankExit(-SIGKILL, lost_with="its fork server on node3, which died")
NO_ROOM = "rank 1 was killed by the kernel: out of memory on the host"
NO_RESULT = "and no result: no line of its log is an error"


def judge(*, exits=None, on_cpu=True, limit=None, **known):
    """The verdict on two ranks; an exit is a code, or a `RankExit` to say more."""
    ends = {
        rank: end if isinstance(end, RankExit) else RankExit(end)
        for rank, end in (exits or {}).items()
    }
    nothing = {
        "world_size": 2, "exits": ends, "beats": {0: "step 1", 1: "step 1"},
        "finished": frozenset(), "failures": {}, "stopped": None, "silence_s": 0.0,
        "longest_silence_s": 2.0,
    }  # fmt: skip
    evidence = Evidence(**(nothing | known))
    return verdict(evidence, {}.get, on_cpu=on_cpu, memory_limit_bytes=limit)


@pytest.mark.parametrize(
    ("known", "outcome", "message"),
    [
        # whatever happens once all results or times are there
        ({"exits": {0: 0, 1: -SIGABRT}, "finished": {0, 1}}, "ok", None),
        ({"exits": {0: -SIGTERM, 1: -SIGTERM}, "finished": {0, 1}}, "ok", None),
        *(
            ({"exits": {0: 1, 1: 1}, "failures": {0: FULL, 1: GONE}, "timed": frozenset({0, 1}),
              "stopped": stopped}, "ok", None)
            for stopped in (None, "late", "silent")
        ),
        # host memory is the device's on a CPU only
        ({"exits": {1: BY_THE_KERNEL}, "failures": {0: GONE}}, "oom", NO_ROOM),
        ({"exits": {1: BY_THE_KERNEL}, "failures": {0: GONE}, "on_cpu": False},
         "error", NO_ROOM),
        ({"exits": {0: -SIGTERM, 1: BY_THE_KERNEL}}, "oom", NO_ROOM),
        # an abort is often the second death
        ({"exits": {0: -SIGABRT, 1: 1}, "failures": {1: FULL}},
         "oom", "rank 1: CUDA out of memory"),
        ({"exits": {0: -SIGABRT}}, "error", "rank 0 was killed by SIGABRT"),
        # a silent death comes before the failures of its peers
        ({"exits": {0: 1, 1: 3}, "failures": {0: GONE}},
         "error", f"rank 1 ended with exit code 3 {NO_RESULT}"),
        ({"exits": {0: 1, 1: 0}, "failures": {0: GONE}},
         "error", f"rank 1 ended with exit code 0 {NO_RESULT}"),
        ({"exits": {0: 1, 1: -SIGABRT}, "failures": {0: GONE}},
         "error", "rank 1 was killed by SIGABRT"),
        # a failure that blames a peer is not the cause
        ({"exits": {0: 1, 1: 1}, "failures": {0: GONE, 1: OWN}},
         "error", "rank 1: ValueError: no such layer"),
        # neither a preemption beside a cause
        ({"exits": {0: -SIGTERM, 1: 1}, "failures": {1: FULL}},
         "oom", "rank 1: CUDA out of memory"),
        ({"exits": {0: LOST, 1: LOST}},
         "error", "rank 0 was lost with its fork server on node3, which died"),
        # a shell's code beyond all signals is an exit code
        ({"exits": {0: exit_code_from_shell(255)}},
         "error", f"rank 0 ended with exit code 255 {NO_RESULT}"),
        ({"exits": {0: exit_code_from_shell(139)}}, "error", "rank 0 was killed by SIGSEGV"),
        # ranks that hang: those that are behind, that never spoke, and that do not answer
        ({"world_size": 7, "stopped": "silent", "silence_s": 30.0,
          "beats": {0: "step 5", 1: "step 5", 2: "step 4", 4: "step 5"}}, "hang",
         "no rank got further for 30 s (last heard of rank 2: step 4; ranks 0-1, 4: step 5; never "
         "heard of ranks 3, 5-6); the ranks' logs hold their stacks"),
        ({"stopped": "silent", "silence_s": 30.0, "mute": frozenset({1})}, "hang",
         "no rank got further for 30 s (last heard of ranks 0-1: step 1); rank 1 did not answer; "
         "the ranks' logs hold their stacks"),
        # other programs have no stacks
        ({"stopped": "silent", "silence_s": 30.0, "mute": frozenset({0, 1})}, "hang",
         "no rank got further for 30 s (last heard of ranks 0-1: step 1); the ranks' logs hold "
         "their stacks"),
        ({"stopped": "silent", "silence_s": 300.0, "beats": {}}, "hang",
         "no rank got further for 300 s (no rank was ever heard of); the ranks' logs hold their "
         "stacks"),
    ],
    ids=str,
)  # fmt: skip
def test_a_run_is_judged_by_its_cause(known, outcome, message):
    judged = judge(**known)
    assert (judged.outcome, judged.message) == (outcome, message)
    assert (judged.lost_peers, judged.from_outside) == (False, False)


@pytest.mark.parametrize("on_cpu", [False, True])
def test_a_jobs_memory_limit_says_nothing_about_the_layout(on_cpu):
    killed = {0: 1, 3: BY_THE_KERNEL}
    assert judge(exits=killed, failures={0: GONE}, on_cpu=on_cpu, limit=2 * 2**30) == Verdict(
        outcome="error",
        message="the job's memory limit (--mem, 2 GiB) killed rank 3; set slurm: mem_mb",
        memory_limit_bytes=2 * 2**30,
    )


@pytest.mark.parametrize(
    ("silence_s", "longest_silence_s", "outcome"),
    [
        (1.0, 2.0, "timeout"),
        (9.0, 0.5, "timeout"),  # under ten seconds is no hang
        (29.0, 10.0, "timeout"),  # this run has been nearly as silent before
        (31.0, 10.0, "hang"),
        (11.0, 2.0, "hang"),
    ],
)
def test_at_the_limit_a_silence_much_longer_than_any_before_is_a_hang(
    silence_s, longest_silence_s, outcome
):
    judged = judge(stopped="late", silence_s=silence_s, longest_silence_s=longest_silence_s)
    assert judged.outcome == outcome


def test_ranks_that_only_lost_their_peers_are_told_from_others():
    assert judge(exits={0: 1, 1: 1}, failures={0: GONE, 1: GONE}).lost_peers
    alone = judge(exits={0: 1, 1: 0}, failures={0: GONE}, finished={1})
    assert (alone.message, alone.lost_peers) == ("rank 0: Connection closed by peer", True)
    assert not judge(exits={0: 1, 1: -SIGKILL}, failures={0: GONE}).lost_peers


@pytest.mark.parametrize("number", [SIGTERM, SIGHUP, SIGUSR2], ids=lambda number: number.name)
def test_a_rank_that_somebody_ended_is_no_verdict_whatever_its_peers_saw(number):
    found = judge(exits={0: 1, 1: -number}, failures={0: GONE})
    assert (found.message, found.from_outside) == (f"rank 1 was killed by {number.name}", True)
    assert exit_code_from_shell(128 + signal.SIGTERM) == -SIGTERM
