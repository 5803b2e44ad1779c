"""Titles of the sections behind the throughput: what each says, or why it cannot."""

from collections.abc import Mapping
from typing import Any

from scaling.report.sections.leads import leaders, noise
from scaling.report.tables import Record, Tables
from scaling.report.text.numbers import amount, digits, interval, listed, percent, significant
from scaling.report.text.words import counted

FEW_PAIRS = 4  # fewer name the largest effect only where there are no more
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


def titles(tables: Tables, words: Mapping[str, str]) -> dict[str, str]:
    """The titles by section, for the rows of one setting and one series."""
    return {
        "crossovers": crossovers_title(tables, words),
        "efficiency": efficiency_title(tables, words),
        "law": law_title(tables, words),
        "effects": effects_title(tables),
    }


def crossovers_title(tables: Tables, words: Mapping[str, str]) -> str:
    """Where the fastest layout changes, as far as the data resolve it."""
    best, switches = tables["best"], tables["switches"]
    if len(best) < 2:
        return "One size at most: where the fastest layout changes is not known"
    if not switches:
        name = best[0]["layout_name"]
        first, last = best[0]["world_size"], counted(best[-1]["world_size"], words)
        return f"{name} is the fastest from {first} to {last}"
    said = []
    for switch in switches:
        between = f"between {switch['from_world_size']} and {switch['to_world_size']}"
        if switch["verdict"] == "resolved":
            low, high = significant(switch["crossing_low"]), significant(switch["crossing_high"])
            said.append(f"near {significant(switch['crossing'])} [{low}–{high}]")
        elif switch["verdict"] == "tie":
            said.append(f"{between} (not resolved by the data)")
        else:
            said.append(between)
    return f"The fastest layout changes {listed(said)} {words['GPUs']}"


def efficiency_title(tables: Tables, words: Mapping[str, str]) -> str:
    """What keeping the layout of the smallest size costs at the largest."""
    best, fixed = tables["best"], tables["fixed_layout"]
    if len(best) < 2:
        return "One size at most: efficiency needs a second"
    last = best[-1]
    kept = f"{percent(last['efficiency'])} of ideal is left on {counted(last['world_size'], words)}"
    same = next((row for row in fixed if row["world_size"] == last["world_size"]), None)
    if same is None:
        return f"{kept}; the layout of the smallest size does not run there"
    if same["share_of_best"] >= 1 / (1 + noise(tables, last["series"])):
        return f"{kept}, at the layout of the smallest size too"
    return f"{kept}; keeping one layout would cost {percent(1 - same['share_of_best'])} of it"


def law_title(tables: Tables, words: Mapping[str, str]) -> str:
    """The chosen law, what it missed by where it could be tested, and where it peaks."""
    law = next((row for row in tables["laws"] if row["chosen"]), None)
    series = {row["series"] for row in tables["best"]}
    if law is None and series == {"predicted"}:
        return "No scaling law is fitted to predictions, which follow laws of their own"
    if law is None:
        return "No scaling law: that needs four sizes, of which the largest is held out"
    sizes = "1 size" if law["held_out"] == 1 else f"{law['held_out']} sizes"
    said = (
        f"{LAWS[law['law']]} misses {sizes} it had not seen by {percent(law['held_out_error'], 1)}"
    )
    parts = [
        f"{label} {interval(law[name], law[f'{name}_low'], law[f'{name}_high'], 4)}"
        for name, label in _SPREAD.items()
        if law[name] is not None and (law[f"{name}_high"] or 0) > 0
    ]
    if parts:
        said += f": {listed(parts)}"
    if law["peak_world_size"] is not None and law["coherency_low"]:
        peak = round(law["peak_world_size"])
        where = "beyond the data" if peak > law["leaves_data_at"] else "inside the data"
        said += f"; throughput would peak near {counted(peak, words)}, {where}"
    return said


def effects_title(tables: Tables) -> str:
    """The choice whose pairs differ most."""
    shown = [row for row in tables["effects"] if row["pairs"] >= FEW_PAIRS] or tables["effects"]
    if not shown:
        return "No two layouts that ran differ in one choice only"
    top = max(shown, key=lambda row: max(row["mean_ratio"], 1 / row["mean_ratio"]))
    if max(top["mean_ratio"], 1 / top["mean_ratio"]) <= 1 + noise(tables, top["series"]):
        return f"No choice matters: on average {top['name']} and all others are within noise"
    ratio = f"×{digits(top['mean_ratio'], 2)}"
    pairs = "1 pair" if top["pairs"] == 1 else f"{top['pairs']} pairs"
    return f"The choice that matters most is {top['name']}: {ratio} on average over {pairs}"


def knee_sentence(tables: Tables, words: Mapping[str, str]) -> str:
    """Up to which size a doubling still pays."""
    knee = next(iter(tables["knees"]), None)
    if knee is None:
        return ""
    share = f"{digits(knee['knee_share'], 2)} of twice the throughput"
    size = counted(knee["knee_world_size"], words)
    returned = "would return" if knee["series"] == "predicted" else "returned"
    if knee["beyond_data"]:
        return f"Every doubling up to {size} {returned} at least {share}: no knee within the data."
    return (
        f"The knee is at {size}: up to there every doubling {returned} at least {share}, "
        f"the next step {digits(knee['returned'], 2)}."
    )


def map_title(tables: Tables, size: int, words: Mapping[str, str]) -> str:
    """The best cell of the map, and how many hold nothing that runs."""
    cells = [row for row in tables["map"] if row["world_size"] == size]
    ran = [row for row in cells if row["status"] == "ok"]
    at = f"At {counted(size, words)}"
    if not ran:
        return f"{at} no cell of tp × pp runs"
    firm = [row for row in ran if row["series"] != "predicted"]
    best = leaders(tables, firm or ran, "share_of_best")
    which = "cell" if firm else "predicted cell"
    named = [f"tp {row['tp']}, pp {row['pp']}" for row in best]
    title = f"{at} the best {which} is {named[0]}"
    if len(best) > 1:
        title = f"{at} the best {which}s tie: {'; '.join(sorted(named))}"
    empty = len(cells) - len(ran)
    return f"{title}; {empty} of {len(cells)} cells hold nothing that runs" if empty else title


def memory_title(tables: Tables) -> str:
    """How well predicted memory tells those that fit from those that do not."""
    known = [
        row
        for row in tables["statistics"]
        if row["predicted_outcome"] is not None and row["outcome"] in ("ok", "oom")
    ]
    if not known:
        return "Memory: no prediction can be held against a point that ran or ran out"
    right = sum(row["predicted_outcome"] == row["outcome"] for row in known)
    return f"Predicted memory tells {percent(right / len(known))} of {len(known)} points right"


def time_title(tables: Tables, words: Mapping[str, str]) -> str:
    """The largest loss at the largest size that has one."""
    parts = tables["time_split"]
    if not parts:
        return "Where the step goes is not known: nothing was profiled or predicted"
    size = max(row["world_size"] for row in parts)
    losses = [row for row in parts if row["world_size"] == size and row["part"] != "compute"]
    worst = max(losses, key=lambda row: row["share_to"] - row["share_from"])
    share = percent(worst["share_to"] - worst["share_from"])
    said = f"At {counted(size, words)} the largest loss is {worst['part']}, {share} of the step"
    return f"Predicted: {said[0].lower()}{said[1:]}" if worst["series"] == "predicted" else said


def accuracy_title(tables: Tables) -> str:
    """How far predictions are from what was measured."""
    errors = sorted(
        abs(row["predicted_tokens_per_s"] / row["tokens_per_s"] - 1)
        for row in tables["statistics"]
        if row["predicted_tokens_per_s"] is not None and row["tokens_per_s"] is not None
    )
    if not errors:
        return "No prediction can be held against a measurement"
    near = sum(error <= NEAR for error in errors)
    median = errors[len(errors) // 2]
    return (
        f"{near} of {len(errors)} predictions are within ±{percent(NEAR)}; "
        f"half are within {percent(median, 1)}"
    )


def accuracy_note(predicted: list[Record]) -> str:
    """Whether the rows were seen by the calibration."""
    sources = sorted({str(row["stack_fingerprint"]) for row in predicted})
    if not sources:
        return ""
    if sources == ["data sheet"]:
        return (
            "The predictor used data sheets only: none of these rows was fitted, all are held out."
        )
    return (
        f"Parameters from {listed(sources)}: rows that the calibration saw are not held out, so "
        "the error of sizes nobody measured is larger; scaling validate states it."
    )


def predicted_beyond(spans: list[tuple[str, bool]], steps: list[Record], words: Any) -> str:
    """The predicted part of the answer, in its own sentence."""
    if not spans:
        return ""
    said = f"Predicted beyond, not measured: {''.join(text for text, _ in spans)}."
    if steps:
        last = steps[-1]
        share = interval(last["share"], last["share_low"], last["share_high"])
        said += f" The step to {counted(last['to_world_size'], words)} would return {share}."
    return said


def price_note(setting: Record, costs: list[Record]) -> str:
    """What the costs rest on."""
    if not costs:
        return ""
    price = setting["usd_per_gpu_hour"]
    money = (
        "No price is known for this cluster"
        if price is None
        else f"At {significant(price)} dollar per hour and device (config/clusters.yaml)"
    )
    kinds = {row["joules_from"] for row in costs}
    energy = {
        "measured": "energy as measured",
        "tdp": f"energy at the data sheet's {amount(setting['gpu_tdp_w'])} W per device all the "
        "time, without the rest of the node",
    }
    known = [energy[kind] for kind in ("measured", "tdp") if kind in kinds]
    return f"{money}; {' or '.join(known) if known else 'energy is not known'}."
