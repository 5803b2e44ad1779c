"""The verdict on a run, by the evidence of its ranks."""

import signal
from typing import Any

import pytest

from scaling.launch.judge import Evidence, HostMemory, Verdict, verdict
from scaling.launch.not_measured import KilledFromOutside
from scaling.launch.start.rank_exits import exit_code_from_shell
from scaling.launch.start.starter import RankExit
from scaling.record.rank_files import RankFailure

ON_A_CPU = HostMemory(is_device=True)
GONE = RankFailure(outcome="error", message="Connection closed by peer", failed_at=1.0)


def judge(*, exits=None, memory=ON_A_CPU, **known):
    """The verdict on two ranks; an exit is a code, or a `RankExit` to say more."""
    ends = {
        rank: end if isinstance(end, RankExit) else RankExit(end)
        for rank, end in (exits or {}).items()
    }
    nothing: dict[str, Any] = {
        "world_size": 2,
        "exits": ends,
        "beats": {0: "step 1", 1: "step 1"},
        "finished": frozenset(),
        "failures": {},
        "stopped": None,
        "silence_s": 0.0,
        "longest_silence_s": 2.0,
    }
    return verdict(Evidence(**(nothing | known)), {}.get, memory)


def test_every_result_is_ok_even_if_a_rank_then_aborts():
    assert judge(exits={0: 0, 1: -signal.SIGABRT}, finished={0, 1}).outcome == "ok"


@pytest.mark.parametrize("stopped", [None, "late", "silent"])
def test_what_was_timed_is_ok_whatever_ends_the_ranks_under_the_profiler(stopped):
    full = RankFailure(outcome="oom", message="CUDA out of memory", failed_at=0.5)
    found = judge(
        exits={0: 1, 1: 1}, failures={0: full, 1: GONE}, timed=frozenset({0, 1}), stopped=stopped
    )
    assert found == Verdict(outcome="ok")


def test_sigkill_while_the_kernels_oom_killer_struck_is_oom():
    judged = judge(exits={1: RankExit(-signal.SIGKILL, out_of_memory=True)}, failures={0: GONE})
    assert judged.outcome == "oom"
    assert judged.message == "rank 1 was killed by the kernel: out of memory on the host"


def test_host_memory_is_not_the_memory_of_a_gpu():
    killed = {1: RankExit(-signal.SIGKILL, out_of_memory=True)}
    judged = judge(exits=killed, failures={0: GONE}, memory=HostMemory())
    assert judged.outcome == "error"
    assert judged.message == "rank 1 was killed by the kernel: out of memory on the host"


@pytest.mark.parametrize("is_device", [False, True], ids=["gpu", "cpu"])
def test_a_jobs_memory_limit_says_nothing_about_the_layout(is_device):
    judged = judge(
        exits={0: 1, 3: RankExit(-signal.SIGKILL, out_of_memory=True)},
        failures={0: GONE},
        memory=HostMemory(is_device=is_device, limit_bytes=2 * 2**30),
    )
    assert judged == Verdict(
        outcome="error",
        message="the job's memory limit (--mem, 2 GiB) killed rank 3; set slurm: mem_mb",
        memory_limit_bytes=2 * 2**30,
    )


def test_an_abort_is_often_the_second_death():
    cause = RankFailure(outcome="oom", message="CUDA out of memory", failed_at=0.5)
    judged = judge(exits={0: -signal.SIGABRT, 1: 1}, failures={1: cause})
    assert judged == Verdict(outcome="oom", message="rank 1: CUDA out of memory")
    alone = judge(exits={0: -signal.SIGABRT})
    assert alone == Verdict(outcome="error", message="rank 0 was killed by SIGABRT")


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


def test_a_hang_names_the_ranks_that_are_behind_and_those_that_never_spoke():
    beats = {0: "step 5", 1: "step 5", 2: "step 4", 4: "step 5"}
    message = judge(world_size=7, stopped="silent", silence_s=30.0, beats=beats).message
    assert message == (
        "no rank got further for 30 s (last heard of rank 2: step 4; ranks 0-1, 4: step 5; never "
        "heard of ranks 3, 5-6); the ranks' logs hold their stacks"
    )


def test_a_hang_names_the_ranks_that_do_not_answer():
    message = judge(stopped="silent", silence_s=30.0, mute=frozenset({1})).message
    assert message == (
        "no rank got further for 30 s (last heard of ranks 0-1: step 1); rank 1 did not answer; "
        "the ranks' logs hold their stacks"
    )
    of_other_programs = judge(stopped="silent", silence_s=30.0, mute=frozenset({0, 1})).message
    assert "answer" not in of_other_programs


def test_ranks_that_only_lost_their_peers_are_told_from_others():
    assert judge(exits={0: 1, 1: 1}, failures={0: GONE, 1: GONE}).lost_peers
    own = RankFailure(outcome="error", message="ValueError: no such layer", failed_at=2.0)
    assert not judge(exits={0: 1, 1: 1}, failures={0: GONE, 1: own}).lost_peers
    assert not judge(exits={0: 1, 1: -signal.SIGKILL}, failures={0: GONE}).lost_peers


def test_ranks_never_heard_of_are_said_to_be():
    message = judge(stopped="silent", silence_s=300.0, beats={}).message
    assert "no rank was ever heard of" in message


def test_a_silent_death_comes_before_the_failures_of_its_peers():
    for end in (3, 0, -signal.SIGABRT):
        judged = judge(exits={0: 1, 1: end}, failures={0: GONE})
        assert judged.outcome == "error"
        assert judged.message.startswith("rank 1 ")


def test_a_failure_that_blames_a_peer_is_not_the_cause():
    cause = RankFailure(outcome="error", message="ValueError: no such layer", failed_at=301.0)
    assert judge(exits={0: 1, 1: 1}, failures={0: GONE, 1: cause}).message == (
        "rank 1: ValueError: no such layer"
    )
    alone = judge(exits={0: 1, 1: 0}, failures={0: GONE}, finished={1})
    assert alone.message == "rank 0: Connection closed by peer"
    assert alone.lost_peers


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2], ids=lambda number: number.name
)
def test_a_rank_that_somebody_ended_is_no_verdict_whatever_its_peers_saw(number):
    with pytest.raises(KilledFromOutside, match=f"rank 1 was killed by {number.name}"):
        judge(exits={0: 1, 1: -number}, failures={0: GONE})


def test_a_preemption_after_every_result_or_beside_a_cause_changes_nothing():
    ended = {0: -signal.SIGTERM, 1: -signal.SIGTERM}
    assert judge(exits=ended, finished=frozenset({0, 1})).outcome == "ok"
    full = RankFailure(outcome="oom", message="CUDA out of memory", failed_at=0.5)
    assert judge(exits={0: -signal.SIGTERM, 1: 1}, failures={1: full}).outcome == "oom"
    by_the_kernel = RankExit(-signal.SIGKILL, out_of_memory=True)
    assert judge(exits={0: -signal.SIGTERM, 1: by_the_kernel}).outcome == "oom"


def test_a_host_that_was_killed_is_told_from_a_rank_that_was():
    lost = RankExit(-signal.SIGKILL, lost_with="its fork server on node3, which died")
    assert judge(exits={0: lost, 1: lost}) == Verdict(
        outcome="error",
        message="rank 0 was lost with its fork server on node3, which died",
    )


def test_a_shells_code_beyond_all_signals_is_an_exit_code():
    assert (
        judge(exits={0: exit_code_from_shell(255)}).message
        == "rank 0 ended with exit code 255 and no result: no line of its log is an error"
    )
    assert exit_code_from_shell(143) == -signal.SIGTERM
