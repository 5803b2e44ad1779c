"""Titles of the sections about peers and probes: a sentence, or why there is none."""

from collections.abc import Mapping

from scaling.report.tables import Record, Tables
from scaling.report.text.numbers import amount, digits, listed, percent
from scaling.report.text.words import called

HALF = 0.5


def peers_title(tables: Tables, words: Mapping[str, str]) -> str:
    """What one GPU gives here against the same study point on other clusters."""
    rows = [row for row in tables["peers"] if row["dimension"] == "cluster"]
    mine = {row["world_size"]: row for row in rows if row["itself"]}
    compared = []
    for other in sorted({row["cluster"] for row in rows if not row["itself"]}):
        shared = {r["world_size"]: r for r in rows if r["cluster"] == other and not r["itself"]}
        sizes = sorted(mine.keys() & shared.keys())
        if sizes:
            here, there = mine[sizes[-1]], shared[sizes[-1]]
            ratio = here["tokens_per_s_per_gpu"] / there["tokens_per_s_per_gpu"]
            compared.append(f"{digits(ratio, 2)} times those of {other}{_at_mfu(here, there)}")
    if compared:
        here = next(iter(mine.values()))
        which = f"Tokens per second of a {words['GPU']} of {here['cluster']}, same layout"
        return called(f"{which}: {listed(compared)}", here["series"])
    return "No other cluster ran the same layout at the same size"


def _at_mfu(here: Record, there: Record) -> str:
    if here["mfu"] is None or there["mfu"] is None:
        return ""
    return f" (MFU {percent(here['mfu'])} against {percent(there['mfu'])})"


def collectives_title(tables: Tables) -> str:
    """The best bus bandwidth of all-reduce, and from which message on half of it is reached."""
    rows = [row for row in tables["collectives"] if row["kind"] == "all_reduce"]
    rows = rows or tables["collectives"]
    if not rows:
        return "No collective was probed"
    top = max(rows, key=lambda row: float(row["bus_bytes_per_s"]))
    same = ("kind", "ranks", "nodes", "at_once")
    line = [row for row in rows if all(row[key] == top[key] for key in same)]
    half = min(r["message_bytes"] for r in line if r["bus_bytes_per_s"] >= HALF * _bus(top))
    kind = str(top["kind"]).replace("_", "-")
    sentence = f"{kind[0].upper()}{kind[1:]} reaches {amount(_bus(top), 'B/s')}"
    return f"{sentence}, half of it from messages of {size_of(half)} on"


def slow_hosts_note(tables: Tables) -> str:
    """The hosts that lag behind their peers at the same work, worst first."""
    rows = tables["slow_hosts"]
    if not rows:
        return ""
    named = [
        f"{row['host']} is {digits(row['slowdown'], 2)} times slower at "
        f"{str(row['kind']).replace('_', ' ')} ({row['probes']} probes)"
        for row in rows
    ]
    least = digits(rows[0]["slow_from"], 1)
    return f"Slower than the median of its peers by {least} or more: {listed(named)}."


def size_of(size_bytes: float) -> str:
    """A message: `64 KiB`, `4 MiB`."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g}\u202f{unit}"
    return f"{size_bytes:.0f}\u202fB"


def _bus(row: Record) -> float:
    return float(row["bus_bytes_per_s"])
