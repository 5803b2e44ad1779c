"""Parse the output of nccl-tests (all_reduce_perf etc.) as probes."""

import re
from typing import Any

from scaling.record.probe_row import COLLECTIVES

_NAME = re.compile(r"(\w+)_perf\b")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device", re.MULTILINE)
# size, count, type, redop, root; out of place: time in us, two bandwidths, #wrong
_LINE = re.compile(
    r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.]+)\s+[\d.]+\s+[\d.]+\s+(\d+|N/A)", re.MULTILINE
)
_KINDS = {"alltoall": "all_to_all", "sendrecv": "send_recv"}


def parse_log(text: str) -> list[dict[str, Any]]:
    """One probe per message size: seconds out of place, with all ranks as one group.

    `message_bytes` is the size column, which nccl-tests defines as our probes do.

    Raises:
        ValueError: the collective, the ranks or the sizes are missing.
    """
    name = _NAME.search(text)
    kind = _KINDS.get(name[1], name[1]) if name else None
    if kind not in COLLECTIVES:
        raise ValueError(f"it names none of {', '.join(COLLECTIVES)} followed by _perf")
    ranks = _RANK.findall(text)
    if not ranks:
        raise ValueError('it has no line "#  Rank  0 ... on HOST device"')
    lines = [line for line in _LINE.findall(text) if int(line[0]) > 0]
    if not lines:
        raise ValueError("it has no line of a size, a time and bandwidths")
    return [
        {
            "kind": kind,
            "outcome": "ok" if wrong in ("0", "N/A") else "wrong",
            "message_bytes": int(size),
            "ranks": len(ranks),
            "nodes": len({host for _, host in ranks}),
            "groups": 1,
            "seconds": float(time_us) * 1e-6,
        }
        for size, time_us, wrong in lines
    ]
