import signal
from typing import Any

import pytest

from scaling.launch.verdict import Verdict, verdict
from scaling.launch.watch import Evidence
from scaling.rank_files import RankFailure

GONE = RankFailure(outcome="error", message="Connection closed by peer", failed_at=1.0)


def judge(oom_kills: int = 0, **known: Any) -> Verdict:
    nothing: dict[str, Any] = {
        "world_size": 2,
        "exits": {},
        "beats": {0: "step 1", 1: "step 1"},
        "finished": frozenset(),
        "failures": {},
        "stopped": None,
        "silence_s": 0.0,
        "longest_silence_s": 2.0,
    }
    return verdict(Evidence(**(nothing | known)), oom_kills=oom_kills, last_lines={})


def test_every_result_is_ok_even_if_a_rank_then_aborts() -> None:
    assert judge(exits={0: 0, 1: -signal.SIGABRT}, finished={0, 1}).outcome == "ok"


def test_one_missing_result_is_not_ok() -> None:
    assert judge(exits={0: 0, 1: 1}, finished={0}).outcome == "error"


def test_sigkill_while_the_kernels_oom_killer_struck_is_oom() -> None:
    judged = judge(exits={1: -signal.SIGKILL}, failures={0: GONE}, oom_kills=1)
    assert judged.outcome == "oom"
    assert judged.message == "rank 1 was killed by the kernel: out of memory on the host"


def test_sigkill_without_it_is_an_error_and_outweighs_what_its_peers_saw() -> None:
    judged = judge(exits={0: 1, 1: -signal.SIGKILL}, failures={0: GONE})
    assert judged == Verdict(outcome="error", message="rank 1 was killed by SIGKILL")


def test_another_process_of_the_machine_running_out_of_memory_is_not_ours() -> None:
    assert judge(exits={0: 1}, failures={0: GONE}, oom_kills=3).outcome == "error"


def test_an_abort_is_often_the_second_death() -> None:
    cause = RankFailure(outcome="oom", message="CUDA out of memory", failed_at=0.5)
    judged = judge(exits={0: -signal.SIGABRT, 1: 1}, failures={1: cause})
    assert judged == Verdict(outcome="oom", message="rank 1: CUDA out of memory")
    alone = judge(exits={0: -signal.SIGABRT})
    assert alone == Verdict(outcome="error", message="rank 0 was killed by SIGABRT")


def test_a_real_time_signal_has_a_number_only() -> None:
    assert judge(exits={0: -40}).message == "rank 0 was killed by signal 40"


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
    silence_s: float, longest_silence_s: float, outcome: str
) -> None:
    judged = judge(stopped="late", silence_s=silence_s, longest_silence_s=longest_silence_s)
    assert judged.outcome == outcome


def test_ranks_never_heard_of_are_said_to_be() -> None:
    message = judge(stopped="silent", silence_s=300.0, beats={}).message
    assert message is not None
    assert "no rank was ever heard of" in message
