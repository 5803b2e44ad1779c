"""Titles of the sections about one choice, energy, peers and probes: a sentence, or why not."""

from collections.abc import Mapping

from scaling.report.sections.leads import leaders, noise
from scaling.report.tables import Record, Tables
from scaling.report.text.numbers import amount, digits, listed, percent, significant
from scaling.report.text.words import counted

HALF = 0.5


def titles(tables: Tables, words: Mapping[str, str]) -> dict[str, str]:
    """The titles by section, for the rows of one setting."""
    return {
        "tensor": tensor_title(tables, words),
        "zero": zero_title(tables, words),
        "energy": energy_title(tables, words),
        "communication": communication_title(tables, words),
        "peers": peers_title(tables, words),
        "collectives": collectives_title(tables),
        "interactions": interactions_title(tables),
    }


def at_size(tables: Tables, size: int, words: Mapping[str, str]) -> dict[str, str]:
    """The titles that depend on the chosen size."""
    return {
        "levels": levels_title(tables, size, words),
        "degrees": degrees_title(tables, size, words),
        "batches": batches_title(tables, size, words),
    }


def levels_title(tables: Tables, size: int, words: Mapping[str, str]) -> str:
    """The axis whose levels differ most at one size, each at the best of all other choices."""
    here = [row for row in tables["levels"] if row["world_size"] == size]
    at = f"At {counted(size, words)}"
    spreads: list[tuple[float, Record, Record]] = []
    for axis in {row["axis"] for row in here}:
        ran = [row for row in here if row["axis"] == axis and row["tokens_per_s"] is not None]
        if len(ran) > 1:
            ranked = sorted(ran, key=_rate)
            spreads.append((_rate(ranked[-1]) / _rate(ranked[0]), ranked[-1], ranked[0]))
    if not spreads:
        return f"{at} no axis has two levels that ran"
    factor, best, worst = max(spreads, key=lambda one: one[0])
    floor = max(noise(tables, row["series"]) for row in (best, worst))
    if factor <= 1 + floor:
        title = f"{at} the levels of every axis are within noise ({percent(floor)})"
    else:
        factor_text = f"×{digits(factor, 2)} as fast"
        title = f"{at} {best['name']} is {factor_text} as {worst['name']}, each at its best"
    return _foretold(title, [best, worst])


def degrees_title(tables: Tables, size: int, words: Mapping[str, str]) -> str:
    """The model-parallel degree of the fastest cell."""
    ran = [r for r in tables["map"] if r["world_size"] == size and r["status"] == "ok"]
    at = f"At {counted(size, words)}"
    if not ran:
        return f"{at} no model-parallel degree ran"
    best = leaders(tables, ran, "tokens_per_s_per_gpu")
    if len(best) > 1:
        degrees = sorted({row["tp"] * row["pp"] for row in best})
        which = f"degrees {listed([str(one) for one in degrees])} tie"
        title = (
            f"{at} model-parallel {which}"
            if len(degrees) > 1
            else (f"{at} cells of model-parallel degree {degrees[0]} tie")
        )
        return _foretold(title, best)
    degree = best[0]["tp"] * best[0]["pp"]
    made = f" (tp {best[0]['tp']}, pp {best[0]['pp']})" if degree > 1 else ""
    return _foretold(f"{at} model-parallel degree {degree} is the fastest{made}", best)


def batches_title(tables: Tables, size: int, words: Mapping[str, str]) -> str:
    """The best micro-batch at one size, by precision, and what did not fit."""
    here = [row for row in tables["batches"] if row["world_size"] == size]
    ran = [row for row in here if row["outcome"] == "ok"]
    at = f"At {counted(size, words)}"
    if not ran:
        return f"{at} no micro-batch ran"
    best = leaders(tables, ran)
    first = f"micro-batch {best[0]['micro_batch_size']} in {best[0]['precision']}"
    title = f"{at} {first} is the fastest"
    if len(best) > 1:
        tied = sorted((row["micro_batch_size"], row["precision"]) for row in best)
        title = f"{at} micro-batches {listed([f'{size} in {kind}' for size, kind in tied])} tie"
    if len(here) == 1:
        title = f"{at} only {first} was tried"
    failed = [row for row in here if row["outcome"] != "ok"]
    if failed:
        which = {f"{row['micro_batch_size']} in {row['precision']}" for row in failed}
        title += f"; nothing ran with {listed(sorted(which))}"
    return _foretold(title, best)


def tensor_title(tables: Tables, words: Mapping[str, str]) -> str:
    """How the best tp changes between the smallest and the largest size."""
    rows = _levels(tables, "tp")
    sizes = sorted({row["world_size"] for row in rows})
    if not sizes:
        return _one_level(tables, "tp", "tp")
    best = [leaders(tables, [r for r in rows if r["world_size"] == size]) for size in sizes]
    levels = [{row["level"] for row in tied} for tied in best]
    always = sorted(set.intersection(*levels))
    if len({row["level"] for row in rows}) == 1:
        title = f"Only tp {always[0]} ran"
    elif always:
        tied = ", or ties with it" if any(len(one) > 1 for one in levels) else ""
        title = f"tp {always[0]} is the fastest at every size{tied}"
    elif levels[0] & levels[-1]:
        title = f"Which tp is the fastest changes between {listed([str(one) for one in sizes])}"
    else:
        title = (
            f"The fastest tp goes from {_or(levels[0])} on {counted(sizes[0], words)} to "
            f"{_or(levels[-1])} on {counted(sizes[-1], words)}"
        )
    return _foretold(title, [row for tied_rows in best for row in tied_rows])


def zero_title(tables: Tables, words: Mapping[str, str]) -> str:
    """The ZeRO stage with the shortest step at the largest size, and that with least memory."""
    rows = _levels(tables, "ZeRO")
    if not rows:
        return _one_level(tables, "zero_stage", "ZeRO")
    size = max(row["world_size"] for row in rows)
    here = [row for row in rows if row["world_size"] == size]
    if len(here) == 1:
        return _foretold(f"Only {here[0]['name']} ran on {counted(size, words)}", here)
    fast = leaders(tables, here)
    names = sorted(row["name"] for row in fast)
    step = "has the shortest step" if len(fast) == 1 else "have equal steps within noise"
    title = f"{listed(names)} {step} on {counted(size, words)}"
    known = [row for row in here if row["least_memory_bytes"] is not None]
    if len(known) > 1:
        least = min(known, key=lambda row: int(row["least_memory_bytes"]))
        both = len(fast) == 1 and least is fast[0]
        title += " and" if both else f", {least['name']}"
        title += " needs the least memory"
    return _foretold(title, fast)


def energy_title(tables: Tables, words: Mapping[str, str]) -> str:
    """What a joule buys at the largest size against the smallest."""
    known = [row for row in tables["best"] if row["tokens_per_joule"] is not None]
    if not known:
        return "Energy was not measured"
    last = known[-1]
    said = f"On {counted(last['world_size'], words)} a joule trains "
    said += f"{significant(last['tokens_per_joule'])} tokens"
    if len(known) > 1:
        change = last["tokens_per_joule"] / known[0]["tokens_per_joule"] - 1
        way = "more" if change >= 0 else "fewer"
        compared = f"{percent(abs(change))} {way} than"
        if abs(change) <= noise(tables, last["series"]):
            compared = "about as many as"
        said += f", {compared} on {known[0]['world_size']}"
    return said


def communication_title(tables: Tables, words: Mapping[str, str]) -> str:
    """The kind of collective that takes most time at the largest profiled size."""
    rows = [row for row in tables["communication"] if row["split"] == "kind"]
    if not rows:
        return "What communication is made of was not profiled"
    size = max(row["world_size"] for row in rows)
    here = [row for row in rows if row["world_size"] == size]
    most = max(here, key=lambda row: float(row["seconds"]))
    total = most["comm_s"] or sum(row["seconds"] for row in here)
    said = f"On {counted(size, words)} {percent(most['seconds'] / total)} of the communication is "
    return f"{said}{most['part']}"


def peers_title(tables: Tables, words: Mapping[str, str]) -> str:
    """What one GPU gives here against the same study point on other clusters."""
    rows = [row for row in tables["peers"] if row["dimension"] == "cluster"]
    mine = {row["world_size"]: row for row in rows if row["itself"]}
    said = []
    for other in sorted({row["cluster"] for row in rows if not row["itself"]}):
        shared = {r["world_size"]: r for r in rows if r["cluster"] == other and not r["itself"]}
        sizes = sorted(mine.keys() & shared.keys())
        if sizes:
            here, there = mine[sizes[-1]], shared[sizes[-1]]
            ratio = here["tokens_per_s_per_gpu"] / there["tokens_per_s_per_gpu"]
            said.append(f"{digits(ratio, 2)} times those of {other}{_at_mfu(here, there)}")
    if said:
        here = next(iter(mine.values()))
        which = f"Tokens per second of a {words['GPU']} of {here['cluster']}, same layout"
        return f"{which}: {listed(said)}"
    for dimension, label in (("model", "{model}"), ("context", "{seq_length} tokens a sequence")):
        ran = [r for r in tables["peers"] if r["dimension"] == dimension and r["mfu"] is not None]
        tried = {row["world_size"] for row in ran}
        several = [s for s in tried if sum(row["world_size"] == s for row in ran) > 1]
        if several:
            size = max(several)
            told = [
                f"{percent(row['mfu'], 1)} for {label.format(**row)}"
                for row in sorted(ran, key=lambda r: (r["total_params"], r["seq_length"]))
                if row["world_size"] == size
            ]
            return f"On {counted(size, words)} MFU is {listed(told)}"
    return "No other setting of this study can be set beside this one"


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
    said = f"{kind[0].upper()}{kind[1:]} reaches {amount(_bus(top), 'B/s')}"
    return f"{said}, half of it from messages of {size_of(half)} on"


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


def interactions_title(tables: Tables) -> str:
    """The strongest interaction."""
    rows = [row for row in tables["interactions"] if row["shown"]]
    if not rows:
        return "No choice was tried at every level of another one"
    first = min(row["rank"] for row in rows)
    top = sorted((r for r in rows if r["rank"] == first), key=lambda r: float(r["level_order"]))
    low, high = top[0], top[-1]
    return (
        f"What {low['name']}, is worth depends on {low['axis']}: "
        f"×{digits(low['mean_ratio'], 2)} at {low['level']}, "
        f"×{digits(high['mean_ratio'], 2)} at {high['level']}"
    )


def size_of(size_bytes: float) -> str:
    """A message: `64 KiB`, `4 MiB`."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g}\u202f{unit}"
    return f"{size_bytes:.0f}\u202fB"


def _levels(tables: Tables, axis: str) -> list[Record]:
    """The levels of an axis that ran; those predicted where none did."""
    rows = [row for row in tables["levels"] if row["axis"] == axis and row["outcome"] == "ok"]
    return [row for row in rows if row["series"] != "predicted"] or rows


def _one_level(tables: Tables, column: str, name: str) -> str:
    """Where levels cannot be compared: the one that ran, or that none did."""
    ran = [row for row in tables.records.get("statistics", []) if row["outcome"] == "ok"]
    levels = {row[column] for row in ran}
    if not levels:
        return f"No {name} can be compared: nothing ran"
    if len(levels) == 1:
        return f"Only {name} {levels.pop()} ran: there is nothing to compare"
    return f"No two {name} levels ran at the same size"


def _or(levels: set[str]) -> str:
    return " or ".join(sorted(levels))


def _rate(row: Record) -> float:
    return float(row["tokens_per_s"])


def _bus(row: Record) -> float:
    return float(row["bus_bytes_per_s"])


def _foretold(said: str, rows: list[Record]) -> str:
    """A sentence that stands on a predicted row says so."""
    predicted = any(row["series"] == "predicted" for row in rows)
    return f"Predicted: {said}" if predicted else said
