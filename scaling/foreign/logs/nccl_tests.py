"""Parse the output of nccl-tests (all_reduce_perf etc.) as probes."""

import re
from typing import Any

from scaling.record.probe_row import COLLECTIVES

_NAME = re.compile(r"(\w+)_perf\b")
_HEADER = re.compile(r"^# nThread ", re.MULTILINE)
_RANK = re.compile(r"^#\s+Rank\s+\d+\s+(?:Group\s+(\d+)\s)?.*?\bon\s+(\S+)\s+device", re.MULTILINE)
# size, count, type, redop, root; out of place: time in us, two bandwidths, #wrong
_LINE = re.compile(
    r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.]+)\s+[\d.]+\s+[\d.]+\s+(\d+|N/A)", re.MULTILINE
)
_KINDS = {"alltoall": "all_to_all", "sendrecv": "send_recv"}


def parse_log(text: str) -> list[dict[str, Any]]:
    """One probe per message size of each test: seconds out of place, null if the result was wrong.

    `message_bytes` is the size column, which nccl-tests defines as our probes do.

    Raises:
        ValueError: the collective, the ranks or the sizes of a test are missing.
    """
    headers = [header.start() for header in _HEADER.finditer(text)] or [0]
    ends = [*headers[1:], len(text)]
    probes = []
    for number, (start, end) in enumerate(zip(headers, ends, strict=True)):
        # a test is named before its header: by the command, or by a line of newer releases
        before = text[headers[number - 1] if number else 0 : start or end]
        probes += _probes_of_test(before, text[start:end])
    return probes


def _probes_of_test(before: str, text: str) -> list[dict[str, Any]]:
    names = _NAME.findall(before)
    kind = _KINDS.get(names[-1], names[-1]) if names else None
    if kind not in COLLECTIVES:
        raise ValueError(f"a test is named by none of {', '.join(COLLECTIVES)} followed by _perf")
    hosts: dict[str, list[str]] = {}
    for group, host in _RANK.findall(text):
        hosts.setdefault(group, []).append(host)
    if not hosts:
        raise ValueError('it has no line "#  Rank  0 ... on HOST device"')
    ranks = max(map(len, hosts.values()))
    if ranks == 1:
        raise ValueError("a test has one rank, which sends nothing; build nccl-tests with MPI=1")
    lines = [line for line in _LINE.findall(text) if int(line[0]) > 0]
    if not lines:
        raise ValueError("it has no line of a size, a time and bandwidths")
    return [
        {
            "kind": kind,
            "outcome": "ok" if wrong in ("0", "N/A") else "wrong",
            "message_bytes": int(size),
            "ranks": ranks,
            "nodes": max(len({*of_group}) for of_group in hosts.values()),
            "groups": len(hosts),
            "seconds": float(time_us) * 1e-6 if wrong in ("0", "N/A") else None,
        }
        for size, time_us, wrong in lines
    ]
