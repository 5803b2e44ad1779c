"""Read what nccl-tests (all_reduce_perf etc.) print, as probes."""

import datetime
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from scaling.errors import InputError, did_you_mean, shortened
from scaling.record.probe_row import COLLECTIVES, Collective, Probe

_LONGEST_LINE = 2000  # characters; a longer one is not from nccl-tests
_MOST_BYTES = 10_000_000
_KINDS = {"alltoall": "all_to_all", "sendrecv": "send_recv"}
_LINE_CELLS = 9  # size count type redop root, out of place: time in us, algbw, busbw, #wrong
# Collectives whose bus bandwidth over algorithm bandwidth tells how many ranks took part.
_SCALED = ("all_gather", "reduce_scatter", "all_to_all")

Sizes = list[tuple[int, float, float, float, bool]]  # bytes, s, algorithm and bus bytes/s, is right


def read_nccl_tests(
    path: Path,
    *,
    cluster: str,
    gpu: str,
    gpus_per_node: int,
    collective: str | None = None,
    ranks: int | None = None,
) -> list[Probe]:
    """One probe per message size of each test; seconds are of the run out of place.

    A paste may lack the name of its test and its ranks. Both follow from bus over algorithm
    bandwidth if it is above 1: all_reduce, 2 (n - 1) / n.

    Args:
        path: of the output, of one test or several.
        cluster: its name.
        gpu: the catalogue's name.
        gpus_per_node: of the cluster.
        collective: of a test whose name is not in the output.
        ranks: of a test whose ranks are not in the output.

    Raises:
        InputError: the file is not from nccl-tests, or does not tell collective or ranks.
    """
    if collective is not None and collective not in COLLECTIVES:
        raise InputError(f"--collective {collective}: {did_you_mean(collective, COLLECTIVES)}")
    started = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC)
    probes = []
    for name, hosts, sizes in _tests(path):
        kind = name or collective or _kind_of(sizes, path)
        found = ranks or max(map(len, hosts), default=0) or _ranks_of(kind, sizes, path)
        if found < 2:
            raise InputError(f"{path}: a test has one rank, which sends nothing")
        nodes = max((len({*of_group}) for of_group in hosts), default=-(-found // gpus_per_node))
        for size, seconds, algorithm, bus, right in sizes:
            probes.append(
                Probe(
                    cluster=cluster, gpu=gpu, gpus_per_node=gpus_per_node, precision="fp32",
                    kind=kind, outcome="ok" if right else "wrong", message_bytes=size,
                    ranks=found, nodes=nodes, groups=max(len(hosts), 1),
                    seconds=seconds if right else None,
                    algorithm_bytes_per_s=algorithm if right else None,
                    bus_bytes_per_s=bus if right else None,
                    started_at=started.isoformat(timespec="seconds"),
                )
            )  # fmt: skip
    if not probes:
        raise InputError(f"{path}: has no line of nccl-tests with a size, a time and bandwidths")
    return probes


def _tests(path: Path) -> Iterator[tuple[Collective | None, list[list[str]], Sizes]]:
    """Each test's collective if it is named, the hosts of its ranks by group, and its sizes."""
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path}: must be a file of at most {_MOST_BYTES:,} bytes")
    name, groups, sizes = None, dict[str, list[str]](), Sizes()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line[:_LONGEST_LINE].split()
        test = next((word for word in words if word.endswith("_perf")), None)
        is_rank = words[:2] == ["#", "Rank"] and "on" in words[:-1]
        if sizes and (test or is_rank or words[:2] == ["#", "nThread"]):  # the next test begins
            yield _collective(name), list(groups.values()), sizes
            name, groups, sizes = None, {}, Sizes()
        if test:
            name = test.rpartition("/")[2].removesuffix("_perf")
        elif is_rank:
            group = words[4] if words[3] == "Group" else ""
            groups.setdefault(group, []).append(words[words.index("on") + 1])
        elif len(words) >= _LINE_CELLS and words[0].isascii() and words[0].isdigit():
            sizes += _size(words, path)
    if sizes:
        yield _collective(name), list(groups.values()), sizes


def _size(words: list[str], path: Path) -> Sizes:
    """The cells of a line of the table; empty for a message of 0 bytes."""
    try:
        size, (time_us, algorithm, bus) = int(words[0][:18]), map(float, words[5:8])
    except ValueError:
        raise InputError(f"{path}: {shortened(' '.join(words))!r} lacks a time or rates") from None
    if not 0 < time_us < 1e12 or size == 0:
        return []
    return [(size, time_us * 1e-6, algorithm * 1e9, bus * 1e9, words[8] in ("0", "N/A"))]


def _collective(name: str | None) -> Collective | None:
    """Our name of a test; None if it is not named."""
    ours = _KINDS.get(name or "", name)
    return next((kind for kind in COLLECTIVES if kind == ours), None)


def _ratio(sizes: Sizes) -> float:
    """Bus over algorithm bandwidth of the large messages, whose rates have digits."""
    ratios = [bus / algorithm for _, _, algorithm, bus, _ in sizes if algorithm > 0]
    return median(ratios[len(ratios) // 2 :]) if ratios else 0.0


def _kind_of(sizes: Sizes, path: Path) -> Collective:
    ratio = _ratio(sizes)
    if ratio > 1.01:
        return "all_reduce"
    raise InputError(
        f"{path}: names no test, and its bus is {ratio:.3g} times its algorithm bandwidth, which "
        f"several have: give --collective, one of {', '.join(COLLECTIVES)}"
    )


def _ranks_of(kind: str, sizes: Sizes, path: Path) -> int:
    ratio = _ratio(sizes)
    share = ratio / 2 if kind == "all_reduce" else ratio if kind in _SCALED else 1.0
    if not 0.4 < share < 0.9999:
        raise InputError(f"{path}: tells no ranks: give --ranks, how many took part")
    return round(1 / (1 - share))
