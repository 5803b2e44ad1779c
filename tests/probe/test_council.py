"""Agreement of ranks through a store."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported at run time

from scaling.probe.program import Council

RANKS, QUESTIONS = 8, 5


def test_ranks_agree_on_the_largest_value_and_leave_one_answer() -> None:
    server = TCPStore("127.0.0.1", 0, None, is_master=True, timeout=timedelta(seconds=60))

    def answers(rank: int) -> list[float]:
        council = Council(server.clone(), RANKS)  # type: ignore[attr-defined]
        return [council.largest(rank * sign) for sign in (1.0, 0.5, -1.0, 0.25, 2.0)]

    with ThreadPoolExecutor(RANKS) as ranks:
        found = list(ranks.map(answers, range(RANKS)))
    assert found == [[7.0, 3.5, 0.0, 1.75, 14.0]] * RANKS
    kept = {key for key in server.list_keys() if "council" in key}
    assert len(kept) == 1, kept
