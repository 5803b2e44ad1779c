"""Rates of collectives by the definitions of nccl-tests (doc/PERFORMANCE.md there).

Algorithm bandwidth is S / t, with S the bytes of the whole tensor of a rank. Bus bandwidth is what
a link must have carried, so that it can be compared with the hardware whatever the collective and
the number of ranks n: of the S bytes a ring sends
    all_reduce                    every byte but its own part, twice           2 (n - 1) / n
    all_gather, reduce_scatter    every part but one                             (n - 1) / n
    all_to_all                    every part but the one it keeps                (n - 1) / n
    broadcast, send_recv          all of it once                                 1
"""

from scaling.record.probe_row import Collective


def bus_factor(kind: Collective, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, a ratio.

    Raises:
        ValueError: a group of one rank sends nothing.
    """
    if ranks < 2:
        raise ValueError(f"a group of {ranks} rank has no bus")
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("broadcast", "send_recv"):
        return 1.0
    return (ranks - 1) / ranks
