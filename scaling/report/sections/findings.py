"""Titles of the sections behind the throughput: what each says, or why it cannot."""

import math
from collections.abc import Mapping

from scaling.analyse.ties import NOISE_FLOOR
from scaling.report.sections.leads import leaders
from scaling.report.tables import Record, Tables
from scaling.report.text.numbers import (
    amount,
    digits,
    interval,
    listed,
    percent,
    significant,
    times,
)
from scaling.report.text.words import called, counted

FEW_PAIRS = 3  # of fewer pairs nothing is said
MOST_NAMED = 3  # choices or cells in one title
PROFILED = 0.1  # a ratio by which a profiler may slow a step down unsaid
NEAR = 0.1  # a prediction within ten per cent counts as near
LAWS = {
    "amdahl": "Amdahl's law",
    "usl": "The universal scalability law",
    "communication": "A law with a communication term",
}
_SPREAD = {
    "serial": "serial share",
    "coherency": "coherency",
    "communication": "communication term",
}


def law_sentence(tables: Tables, words: Mapping[str, str]) -> str:
    """The chosen law, what it missed by where it could be tested, and where it peaks."""
    law = next((row for row in tables["laws"] if row["chosen"]), None)
    if law is None:
        return ""
    sizes = "1 size" if law["held_out"] == 1 else f"{law['held_out']} sizes"
    sentence = (
        f"{LAWS[law['law']]} misses {sizes} it had not seen by {percent(law['held_out_error'], 1)}"
    )
    parts = [
        f"{label} {interval(law[name], law[f'{name}_low'], law[f'{name}_high'], 4)}"
        for name, label in _SPREAD.items()
        if law[name] is not None and (law[f"{name}_high"] or 0) > 0
    ]
    if parts:
        sentence += f": {listed(parts)}"
    if law["peak_world_size"] is not None and law["coherency_low"]:
        peak = round(law["peak_world_size"])
        where = "beyond the data" if peak > law["leaves_data_at"] else "inside the data"
        sentence += f"; throughput would peak near {counted(peak, words)}, {where}"
    return f"{sentence}."


def effects_title(tables: Tables) -> str:
    """The choice that is worth most near the fastest layouts, where one chooses between them."""
    near = [row for row in tables["effects"] if row["near_low"] is not None]
    if not near:
        few = any(row["near_pairs"] for row in tables["effects"])
        return (
            "Too few layouts near the fastest differ in one choice only to rank the choices"
            if few
            else "No two layouts near the fastest differ in one choice only"
        )
    apart = [row for row in near if row["near_low"] > 1 or row["near_high"] < 1]
    apart = [row for row in apart if _factor(row) > 1 + NOISE_FLOOR]
    if not apart:
        return "Near the fastest layouts no choice is told apart from its alternative"
    top = max(apart, key=_factor)
    rivals = [row for row in apart if _most(row) >= _least(top)]
    if len(rivals) > MOST_NAMED:
        return f"Near the fastest layouts {len(rivals)} choices are worth alike, none stands out"
    if len(rivals) > 1:
        names = listed([_better(row) for row in sorted(rivals, key=_factor, reverse=True)])
        return f"Near the fastest layouts {names} are worth most, and alike"
    ratio = interval(_factor(top), _least(top), _most(top))
    return (
        f"Near the fastest layouts {_better(top)} is worth most: ×{ratio} over "
        f"{top['near_pairs']} pairs"
    )


def _choice(row: Record) -> str:
    """An effect inside a sentence: `tp 2 (against 1)`."""
    name, _, against = str(row["name"]).partition(", against ")
    return f"{name} (against {against})"


def _better(row: Record) -> str:
    """An effect inside a sentence, the faster level first: `tp 1 (against 2)`."""
    if row["near_ratio"] >= 1:
        return _choice(row)
    name, _, against = str(row["name"]).partition(", against ")
    axis = f"{row['factor']} " if name.startswith(f"{row['factor']} ") else ""
    if axis and against == "none":
        return f"no {row['factor']} (against {name.removeprefix(axis)})"
    return f"{axis}{against} (against {name.removeprefix(axis)})"


def _most(row: Record) -> float:
    """The largest factor, either way, that the interval of an effect allows."""
    return float(max(row["near_high"], 1 / row["near_low"]))


def _least(row: Record) -> float:
    return float(max(row["near_low"], 1 / row["near_high"]))


def _factor(row: Record) -> float:
    return float(max(row["near_ratio"], 1 / row["near_ratio"]))


def map_title(tables: Tables, size: int, words: Mapping[str, str]) -> str:
    """The best cell of the map, and how many hold nothing that runs."""
    cells = [row for row in tables["map"] if row["world_size"] == size]
    ran = [row for row in cells if row["status"] == "ok"]
    at = f"At {counted(size, words)}"
    if len({(row["tp"], row["pp"]) for row in cells}) < 2:
        return ""  # there is no map
    if not ran:
        return f"{at} no cell of tp × pp runs"
    firm = [row for row in ran if row["series"] != "predicted"]
    best = leaders(firm or ran, "tokens_per_s_per_gpu")
    which = "cell" if firm else "predicted cell"
    named = [f"tp {row['tp']}, pp {row['pp']}" for row in best]
    title = f"{at} the best {which} is {named[0]}"
    if len(best) > MOST_NAMED:
        title = f"{at} {len(best)} {which}s tie for the best"
    elif len(best) > 1:
        title = f"{at} the best {which}s tie: {'; '.join(sorted(named))}"
    empty = len(cells) - len(ran)
    return f"{title}; {empty} of {len(cells)} cells hold nothing that runs" if empty else title


def memory_title(tables: Tables) -> str:
    """What ZeRO saves, in pairs alike in all else; how well predicted memory tells what fits.

    Empty where neither can be told.
    """
    parts = []
    pairs = [
        row
        for row in tables["effects"]
        if row["factor"] == "ZeRO" and row["memory_pairs"] >= FEW_PAIRS
    ]
    if pairs:
        most = max(pairs, key=lambda row: abs(math.log(row["memory_ratio"])))
        fewer = most["less_memory"] * 2 >= most["memory_pairs"]
        count = most["less_memory"] if fewer else most["memory_pairs"] - most["less_memory"]
        parts.append(
            f"{_choice(most)} needs {'less' if fewer else 'no less'} memory in {count} of "
            f"{most['memory_pairs']} pairs, ×{digits(most['memory_ratio'], 2)} on average"
        )
    for row in tables["accuracy"]:
        if row["judged"]:
            right = percent(row["told_right"] / row["judged"])
            parts.append(f"predicted memory tells {right} of {row['judged']} points right")
    sentence = "; ".join(parts)
    return called(sentence[:1].upper() + sentence[1:], pairs[0]["series"] if pairs else "measured")


def time_title(tables: Tables, words: Mapping[str, str]) -> str:
    """The largest loss at the largest size that was profiled, or predicted where none was."""
    parts = tables["time_split"]
    if not parts:
        return "Where the step goes is not known: nothing was profiled or predicted"
    parts = [row for row in parts if row["series"] != "predicted"] or parts
    size = max(row["world_size"] for row in parts)
    here = [row for row in parts if row["world_size"] == size]
    losses = [row for row in here if row["part"] != "compute"]
    worst = max(losses, key=lambda row: row["share_to"] - row["share_from"])
    share = percent(worst["share_to"] - worst["share_from"])
    sentence = f"At {counted(size, words)} the largest loss is {worst['part']}, {share} of the step"
    if worst["series"] == "predicted":
        return called(sentence, "predicted")
    timed = sum(row["seconds"] or 0 for row in here)
    window = worst["profiled_s"] or timed
    if window > timed * (1 + PROFILED):
        sentence += f", as shared under the profiler, which made it {times(window / timed)} as long"
    return sentence


def accuracy_title(tables: Tables) -> str:
    """How far predictions are from what ran."""
    held = next((row for row in tables["accuracy"] if row["compared"]), None)
    if held is None:
        return "No prediction can be held against a row that ran"
    return (
        f"{held['near']} of {held['compared']} predictions are within ±{percent(NEAR)}; "
        f"half are within {percent(held['median_error'], 1)}"
    )


def accuracy_note(tables: Tables) -> str:
    """Whether the calibration saw the rows, and what their publisher left open."""
    held = next((row for row in tables["accuracy"] if row["compared"]), None)
    if held is None:
        return ""
    if held["predicted_from"] == "data sheet":
        note = (
            "The predictor used data sheets only: none of these rows was fitted, all are held out."
        )
    else:
        note = (
            f"Parameters from {held['predicted_from']}: rows that the calibration saw are not held "
            "out, so the error of sizes nobody measured is larger; scaling validate states it."
        )
    if not held["published"]:
        return note
    unstated = held["unstated"]
    beyond = f"; what is predicted also has {unstated}, which nobody states" if unstated else ""
    return (
        f"{note} A published point stands against the prediction that agrees in all that its "
        f"publisher states, though other software ran it{beyond}."
    )


def price_note(setting: Record, costs: list[Record], words: Mapping[str, str]) -> str:
    """What the costs rest on."""
    if not costs:
        return ""
    price = setting["usd_per_gpu_hour"]
    money = (
        "No price is known for this cluster"
        if price is None
        else f"At ${significant(price)} a {words['GPU']}-hour (config/clusters.yaml)"
    )
    kinds = {row["joules_from"] for row in costs}
    energy = {
        "measured": "as measured",
        "tdp": f"by the data sheet's {amount(setting['gpu_tdp_w'])} W per device all the time, "
        "without the rest of the node",
    }
    sources = [energy[kind] for kind in ("measured", "tdp") if kind in kinds]
    known = f"energy in the tooltips {', else '.join(sources)}"
    return f"{money}; {known if sources else 'energy is not known'}."
