"""Sentences that compare sizes: throughput, returns, the knee, the law, the cost of a run."""

import math
import re
from collections.abc import Sequence

from scaling.analyse.ties import UNSTATED_FLOOR, Z80, margin_of
from scaling.errors import counted
from scaling.report.sections.headline import FULL_COST, return_end, returns_in_full
from scaling.report.tables import Record, Tables
from scaling.report.text import amount, digits, interval, listed, percent, significant, times

LAWS = {
    "amdahl": "Amdahl's law",
    "usl": "The universal scalability law",
    "communication": "A law with a communication term",
}
_PARAMETERS = {
    "serial": "serial share",
    "coherency": "coherency",
    "communication": "communication term",
}
_UNSTATED_MARGIN = margin_of(UNSTATED_FLOOR)


def throughput_title(tables: Tables) -> str:
    """How much faster the largest size is than the smallest, and the rate of the smallest."""
    best = [_across_sizes(row) for row in tables["best"]]
    if not best:
        return "No throughput to show: nothing ran"
    predicted = best[0]["series"] == "predicted"
    if len(best) == 1:
        ran = "is predicted" if predicted else "ran"
        return f"Only {tables.gpus(best[0]['world_size'])} {ran}: scaling needs a second size"
    first, last = best[0], best[-1]
    highest = leaders(best)
    growth = last["tokens_per_s"] / first["tokens_per_s"]
    is_noise = abs(math.log(growth)) <= math.hypot(margin(first), margin(last))
    factor = last["world_size"] / first["world_size"]
    where = f"From {first['world_size']} to {tables.gpus(last['world_size'])} ({times(factor)})"
    would, s = ("would ", "") if predicted else ("", "s")
    change = f"grow{s} {times(growth)}" if growth >= 1 else f"fall{s} to {times(growth)}"
    change = f"{would or 'does '}not change beyond the noise" if is_noise else would + change
    title = f"{where} throughput {change}, from {amount(first['tokens_per_s'])} tokens/s"
    if last in highest:
        return title
    sizes = listed([str(size) for size in sorted(row["world_size"] for row in highest)])
    return f"{title}; it is highest at {sizes}"


def returns_title(tables: Tables) -> str:
    """The first step that does not return the share of its cost that the study asks for."""
    steps = tables["returns"]
    if not steps:
        best = tables["best"]
        if not best:
            return "No return of a step: nothing ran"
        ran = "is predicted" if best[0]["series"] == "predicted" else "ran"
        return f"Only one size {ran}: no return of a step"
    would = "would " if steps[0]["series"] == "predicted" else ""
    returns = "would return" if would else "returns"
    short = _first_short(tables)
    if short is None:
        least = min(steps, key=lambda step: float(step["step_return"]))
        which, at_least = ("The one step", "") if len(steps) == 1 else ("Every step", "at least ")
        knee = next(iter(tables["knees"]), None)
        if least["step_return"] >= FULL_COST and (knee is None or _surely_pay(steps, knee)):
            lows = [step["step_return_low"] for step in steps]
            known = [low for low in lows if low is not None]
            perhaps = "" if returns_in_full(min(known, default=None)) else "perhaps "
            return f"{which} {returns} {perhaps}its full cost"
        worth = interval(least["step_return"], least["step_return_low"], least["step_return_high"])
        return f"{which} {returns} {at_least}{worth} of its cost"
    step, threshold = short
    this = f"The step from {step['from_world_size']} to {tables.gpus(step['to_world_size'])}"
    high = return_end(step, "high")
    if high < 0:
        return f"{this} {'would make' if would else 'makes'} training slower"
    perhaps = "" if high < threshold else "perhaps "
    places = _places(step, threshold)
    worth = interval(step["step_return"], step["step_return_low"], step["step_return_high"], places)
    less = f"less than {_share(threshold, places)} of its cost: {worth}"
    return f"{this} {would}{perhaps}{'return' if would else 'returns'} {less}"


def knee_sentence(tables: Tables) -> str:
    """Up to which size every step pays, with the criterion; empty without a knee."""
    knee = next(iter(tables["knees"]), None)
    if knee is None:
        return ""
    size = tables.gpus(knee["knee_world_size"])
    predicted = knee["series"] == "predicted"
    returned = "would return" if predicted else "returned"
    steps = [step for step in tables["returns"] if step["to_world_size"] <= knee["knee_world_size"]]
    share = _share(2 * knee["knee_share"] - 1)
    what, least = "doubling", f"{returned} at least {share} of its cost"
    if any(step["to_world_size"] != 2 * step["from_world_size"] for step in steps):
        gave = "would give" if predicted else "gave"
        growth = significant(2 * knee["knee_share"])
        what, least = "step", f"{gave} at least ×{growth} the throughput for each doubling in it"
    short, sure = _first_short(tables), _surely_pay(steps, knee)
    every = "every" if sure else "perhaps every"
    if short is None:
        return (
            f"{every.capitalize()} {what} up to {size} {least}, as the study asks of it: no knee "
            "within the data."
        )
    step, threshold = short
    perhaps = "" if sure and return_end(step, "high") < threshold else " perhaps"
    worth = digits(step["step_return"], _places(step, threshold))
    if step is tables["returns"][0]:
        following = f"the step to {step['to_world_size']} {returned} {worth}"
        return f"The knee is{perhaps} at {size}, the smallest size: {following}."
    return (
        f"The knee is{perhaps} at {size}: up to there {every} {what} {least}, the next step "
        f"{returned} {worth}."
    )


def _surely_pay(steps: Sequence[Record], knee: Record) -> bool:
    """Whether all steps pay whatever their rates are within their noise."""
    return all(return_end(step, "low") >= _threshold(step, knee) for step in steps)


def _first_short(tables: Tables) -> tuple[Record, float] | None:
    """The first step that does not pay, and what it should have returned of its cost."""
    knee = next(iter(tables["knees"]), None)
    step = next((step for step in tables["returns"] if not step["pays"]), None)
    if knee is None or step is None:
        return None
    return step, _threshold(step, knee)


def _threshold(step: Record, knee: Record) -> float:
    """What a step must return of its cost to count as paying."""
    growth = step["to_world_size"] / step["from_world_size"]
    needed = growth * knee["knee_share"] ** math.log2(growth)
    return float((needed - 1) / (growth - 1))


def _share(share: float, places: int = 2) -> str:
    return "half" if math.isclose(share, 0.5) else digits(share, places)


def _places(step: Record, threshold: float) -> int:
    """Decimal places with which what a step returned reads as less than the threshold."""
    high = step["step_return_high"]
    less = [step["step_return"], *([high] if high is not None and high < threshold else [])]
    return next(
        (n for n in (2, 3) if all(digits(one, n) != digits(threshold, n) for one in less)), 4
    )


def law_sentence(tables: Tables) -> str:
    """The chosen law, its error at held-out sizes, its parameters, and where it peaks."""
    law = next((row for row in tables["laws"] if row["chosen"]), None)
    if law is None:
        return ""
    sizes = counted(law["held_out"], "size")
    sentence = (
        f"{LAWS[law['law']]} is off by {percent(law['held_out_error'], 1)} at {sizes} it had not "
        "seen"
    )
    parameters = [
        f"{label} {_parameter(law[name], law[f'{name}_low'], law[f'{name}_high'])}"
        for name, label in _PARAMETERS.items()
        if law[name] is not None and (law[f"{name}_high"] or 0) > 0
    ]
    if parameters:
        sentence += f": {listed(parameters)}"
    if law["peak_world_size"] is not None and law["coherency_low"]:
        peak = round(law["peak_world_size"])
        where = "beyond the data" if peak > law["leaves_data_at"] else "inside the data"
        sentence += f"; by this law throughput peaks near {tables.gpus(peak)}, {where}"
    return f"{sentence}."


def _parameter(value: float, low: float, high: float) -> str:
    """A parameter with the decimal places that give its high end two digits: `0.03 [0–0.15]`."""
    places = max(2, 1 - math.floor(math.log10(high)))
    return re.sub(r"\b0\.0+\b", "0", interval(value, low, high, places))


def margin(row: Record) -> float:
    """Half the interval of ln(rate), from column `margin`, else that of an unstated noise."""
    margin = row.get("margin")
    return _UNSTATED_MARGIN if margin is None else float(margin)


def _across_sizes(row: Record) -> Record:
    """A fastest row with the margin for another size: with what all layouts of its size share."""
    shared = Z80 * (row.get("predicted_size_sigma") or 0.0)
    return row | {"margin": math.hypot(margin(row), shared)}


def is_ahead(faster: Record, slower: Record, rate: str = "tokens_per_s") -> bool:
    """Whether the lead of one row over another is above their noise."""
    return math.log(faster[rate] / slower[rate]) > math.hypot(margin(faster), margin(slower))


def leaders(rows: Sequence[Record], rate: str = "tokens_per_s") -> list[Record]:
    """The row with the highest rate, and after it those that are not told apart from it."""
    ranked = sorted(rows, key=lambda row: -float(row[rate]))
    return [row for row in ranked if row is ranked[0] or not is_ahead(ranked[0], row, rate)]
