"""Titles of the sections about layouts, memory, time, predictions and probes."""

import math

from scaling.analyse.ties import NOISE_FLOOR
from scaling.errors import counted
from scaling.report.sections.answer import advised_memory
from scaling.report.tables import Record, Tables
from scaling.report.text import amount, digits, gib, interval, listed, percent, times, with_series

FEW_PAIRS = 3  # fewer pairs carry no sentence
MOST_NAMED = 3  # choices or cells in one title
PROFILED = 0.1  # slow-down by the profiler, a ratio, above which the title states it
NEAR = 0.1  # a prediction within ten per cent counts as near
HALF = 0.5


def layouts_title(tables: Tables, size: int) -> str:
    """Which layout is fastest at a size, and by how much; `tables` of the size's firmest series."""
    at = f"At {tables.gpus(size)}"
    best = next((row for row in tables["best"] if row["world_size"] == size), None)
    if best is None:
        predicted = {row["series"] for row in tables["contenders"]} == {"predicted"}
        return f"{at} {'no layout fits' if predicted else 'nothing that was tried ran'}"
    if best["runner_up_layout_name"] is None:
        ran = "fits" if best["series"] == "predicted" else "ran"
        return f"{at} only {best['layout_name']} {ran}"
    if best["tied"]:
        return f"{at} {best['advised_layout_name']} is advised{_rivals(best)}"
    ratio = best["tokens_per_s"] / best["runner_up_tokens_per_s"]
    ahead = f"{percent(ratio - 1, 1)} ahead" if ratio < 2 else f"{times(ratio)} as fast as the next"
    return f"{at} {best['layout_name']} is fastest, {ahead}"


def _rivals(best: Record) -> str:
    """What ties with the fastest, said of the advised layout where that is right of it."""
    fastest, number = best["layout_name"], best["tied_layouts"]
    is_fastest = best["advised_row_name"] == fastest
    if number > 1 and not is_fastest:  # two that tie with the fastest may not tie
        return f", one of {number} layouts not told apart from {fastest}"
    rival = best["runner_up_layout_name"] if is_fastest else fastest
    rivals = f"{number} other layouts are" if number > 1 else f"{rival} is"
    return f" and {rivals} not told apart from it"


def memory_title(tables: Tables, advised: Tables, size: int) -> str:
    """What ZeRO saves in matched pairs, and how often predicted memory is right about what fits.

    Where neither is known: what the layout needs that is advised at this size.

    Args:
        tables: those of one selection, with its predictions.
        advised: the same of the one series that the advice stands on.
        size: number of GPUs.
    """
    parts = []
    pairs = [
        row
        for row in advised["effects"]
        if row["factor"] == "ZeRO" and row["memory_pairs"] >= FEW_PAIRS
    ]
    if pairs:
        most = max(pairs, key=lambda row: abs(math.log(row["memory_ratio"])))
        fewer = most["less_memory"] * 2 >= most["memory_pairs"]
        count = most["less_memory"] if fewer else most["memory_pairs"] - most["less_memory"]
        parts.append(
            f"{_effect(most)} needs {'less' if fewer else 'no less'} memory in {count} of "
            f"{most['memory_pairs']} pairs, ×{digits(most['memory_ratio'], 2)} on average"
        )
    for row in tables["accuracy"]:
        if row["judged"]:
            right = f"{row['told_right']} of {counted(row['judged'], 'point')}"
            parts.append(f"predicted memory is right about what fits for {right}")
    if parts:
        sentence = "; ".join(parts)
        series = pairs[0]["series"] if pairs else "measured"
        return with_series(sentence[:1].upper() + sentence[1:], series)
    best = next((row for row in advised["best"] if row["world_size"] == size), None)
    memory = advised_memory(advised, best) if best else None
    if best is None or memory is None:
        return "How much memory each layout needs"
    capacity = tables["settings"][0]["gpu_memory_bytes"]
    of = f" of {gib(capacity)}" if capacity else ""
    needs = f"the layout advised needs {gib(memory)}{of} per {tables.words['GPU']}"
    return with_series(f"At {tables.gpus(size)} {needs}", best["series"])


def effects_title(tables: Tables) -> str:
    """The choice that is worth most near the fastest layouts, where one stands out."""
    near = [row for row in tables["effects"] if row["near_low"] is not None]
    if not near:
        few = any(row["near_pairs"] for row in tables["effects"])
        return (
            "Too few layouts near the fastest differ in one choice only to rank the choices"
            if few
            else "No two layouts near the fastest differ in one choice only"
        )
    clear = [
        row
        for row in near
        if (row["near_low"] > 1 or row["near_high"] < 1) and _factor(row) > 1 + NOISE_FLOOR
    ]
    if not clear:
        return "Near the fastest layouts no choice is told apart from its alternative"
    top = max(clear, key=_factor)
    least, most = _factor_bounds(top)
    rivals = [row for row in clear if _factor_bounds(row)[1] >= least]
    if len(rivals) > MOST_NAMED:
        return f"Near the fastest layouts none of {len(rivals)} choices stands out as worth most"
    if len(rivals) > 1:
        names = listed([_better(row) for row in sorted(rivals, key=_factor, reverse=True)])
        return f"Near the fastest layouts {names} are worth most and not told apart"
    ratio = interval(_factor(top), least, most)
    is_largest = top is max(near, key=_factor)
    most_of = "" if is_largest else " of the choices told apart from their alternatives"
    return (
        f"Near the fastest layouts {_better(top)} is worth most{most_of}: ×{ratio} over "
        f"{top['near_pairs']} pairs"
    )


def _effect(row: Record) -> str:
    """An effect inside a sentence: `tp 2 (against 1)`."""
    name, _, against = str(row["name"]).partition(", against ")
    return f"{name} (against {against})"


def _better(row: Record) -> str:
    """An effect inside a sentence, the faster level first: `tp 1 (against 2)`."""
    if row["near_ratio"] >= 1:
        return _effect(row)
    name, _, against = str(row["name"]).partition(", against ")
    axis = f"{row['factor']} " if name.startswith(f"{row['factor']} ") else ""
    if axis and against == "none":
        return f"no {row['factor']} (against {name.removeprefix(axis)})"
    return f"{axis}{against} (against {name.removeprefix(axis)})"


def _factor(row: Record) -> float:
    """By how much the better level is faster: at least 1."""
    return float(max(row["near_ratio"], 1 / row["near_ratio"]))


def _factor_bounds(row: Record) -> tuple[float, float]:
    """The interval of `_factor`."""
    low, high = float(row["near_low"]), float(row["near_high"])
    return max(low, 1 / high), max(high, 1 / low)


def time_title(tables: Tables) -> str:
    """The largest loss at the largest size that was profiled, or predicted where none was."""
    parts = tables["time_split"]
    if not parts:
        return "Where a step goes is not known: no layout advised was profiled or predicted"
    parts = [row for row in parts if row["series"] != "predicted"] or parts
    size = max(row["world_size"] for row in parts)
    parts = [row for row in parts if row["world_size"] == size]
    losses = [row for row in parts if row["part"] != "compute"]
    sentence = f"At {tables.gpus(size)} the whole step is compute"
    if losses:
        worst = max(losses, key=lambda row: row["share_to"] - row["share_from"])
        share = percent(worst["share_to"] - worst["share_from"])
        loss = f"the largest loss is {worst['part']}, {share} of the step"
        sentence = f"At {tables.gpus(size)} {loss}"
    if parts[0]["series"] == "predicted":
        return with_series(sentence, "predicted")
    timed = sum(row["seconds"] or 0 for row in parts)
    profiled = parts[0]["profiled_s"] or timed
    if profiled > timed * (1 + PROFILED):
        longer = times(profiled / timed)
        sentence += f", as shared under the profiler, which made it {longer} as long"
    return sentence


def accuracy_title(tables: Tables) -> str:
    """How far predictions are from what ran."""
    accuracy = next((row for row in tables["accuracy"] if row["compared"]), None)
    if accuracy is None:
        return "No prediction can be compared with a row that ran"
    return (
        f"{accuracy['near']} of {accuracy['compared']} points are predicted within "
        f"±{percent(NEAR)}, half of all within {percent(accuracy['median_error'], 1)}"
    )


def accuracy_note(tables: Tables) -> str:
    """Whether the calibration saw the rows, and what their publisher left open."""
    accuracy = next((row for row in tables["accuracy"] if row["compared"]), None)
    if accuracy is None:
        return ""
    if accuracy["predicted_from"] == "data sheet":
        note = (
            "The predictor used data sheets only: it was fitted to none of these rows, so all are "
            "held out."
        )
    else:
        note = (
            f"Parameters from {accuracy['predicted_from']}: rows that the calibration saw are not "
            "held out, so the error of sizes nobody measured is larger; scaling validate states it."
        )
    if not accuracy["published"]:
        return note
    unstated = accuracy["unstated"]
    beyond = f"; the prediction also assumes {unstated}, which nobody states" if unstated else ""
    return (
        f"{note} A published point is compared with the prediction that agrees in all that its "
        f"publisher states, though other software ran it{beyond}."
    )


def collectives_title(tables: Tables) -> str:
    """The best bus bandwidth of all-reduce, and the message size that reaches half of it."""
    rows = [row for row in tables["collectives"] if row["kind"] == "all_reduce"]
    rows = rows or tables["collectives"]
    if not rows:
        return "No collective was probed"
    top = max(rows, key=lambda row: float(row["bus_bytes_per_s"]))
    best = float(top["bus_bytes_per_s"])
    group = ("kind", "ranks", "stride", "nodes", "at_once")
    half = min(
        row["message_bytes"]
        for row in rows
        if all(row[key] == top[key] for key in group) and row["bus_bytes_per_s"] >= HALF * best
    )
    kind = str(top["kind"]).replace("_", "-").capitalize()
    reaches = f"{kind} reaches {amount(best, 'B/s')}"
    return f"{reaches}, half of it from messages of {message_size(half)} on"


def slow_hosts_note(tables: Tables) -> str:
    """The hosts that lag behind their peers at the same work, worst first."""
    rows = tables["slow_hosts"]
    if not rows:
        return ""
    hosts = [
        f"{row['host']} takes {digits(row['slowdown'], 2)} times as long for "
        f"{str(row['kind']).replace('_', ' ')} ({counted(row['probes'], 'probe')})"
        for row in rows
    ]
    least = digits(rows[0]["slow_from"], 1)
    return f"Slow hosts, at least {least} times as long as the median of peers: {listed(hosts)}."


def message_size(size_bytes: float) -> str:
    """`64 KiB`, `4 MiB`."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g}\u202f{unit}"
    return f"{size_bytes:.0f}\u202fB"
