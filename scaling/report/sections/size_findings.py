"""Titles of the sections over the number of GPUs: throughput, returns, the layouts of a size."""

import math
from collections.abc import Mapping, Sequence

from scaling.analyse.ties import NOISE_FLOOR
from scaling.report.sections.headline import ALL_OF_IT
from scaling.report.sections.leads import leaders, margin
from scaling.report.tables import Record, Tables
from scaling.report.text.numbers import amount, digits, interval, listed, percent, times
from scaling.report.text.words import counted


def throughput_title(tables: Tables, words: Mapping[str, str]) -> str:
    """What the largest size gives against the smallest, whose rate stands beside the ratio."""
    best = tables["best"]
    if not best:
        return "No throughput to show: nothing ran"
    if len(best) == 1:
        ran = "is predicted" if _foretold(best) else "ran"
        return f"Only {counted(best[0]['world_size'], words)} {ran}: scaling needs a second size"
    first, last = best[0], best[-1]
    growth = last["tokens_per_s"] / first["tokens_per_s"]
    factor = last["world_size"] / first["world_size"]
    where = f"From {first['world_size']} to {counted(last['world_size'], words)} ({times(factor)})"
    would = "would " if _foretold(best) else ""
    verb = ("grow" if growth >= 1 else "fall") + ("" if would else "s")
    change = (
        f"{would}{verb} {times(growth)}" if growth >= 1 else f"{would}{verb} to {times(growth)}"
    )
    if abs(math.log(growth)) <= math.hypot(margin(first), margin(last)):
        change = f"{would}stay{'' if would else 's'} the same"
    base = f"from {amount(first['tokens_per_s'])} tokens/s"
    tops = leaders(best)
    if last in tops:
        return f"{where} throughput {change}, {base}"
    highest = listed([str(size) for size in sorted(row["world_size"] for row in tops)])
    return f"{where} throughput {change}, {base}; it is highest at {highest}"


def returns_title(tables: Tables, words: Mapping[str, str]) -> str:
    """After which size a step no longer buys the share of its cost that the study asks for."""
    steps = tables["returns"]
    if not steps:
        return "Only one size ran: no return of a step"
    would = "would " if _foretold(steps) else ""
    short = _first_short(tables)
    if short is None:
        least = min(steps, key=lambda step: float(step["step_return"]))
        buys = "would buy" if would else "buys"
        if least["step_return"] >= ALL_OF_IT:
            which = "The one step" if len(steps) == 1 else "Every step"
            return f"{which} {buys} its money's worth"
        share = interval(least["step_return"], least["step_return_low"], least["step_return_high"])
        which = "The one step" if len(steps) == 1 else "The step that returns least"
        return f"{which} {buys} {share} of its money's worth"
    step, threshold = short
    after = f"After {counted(step['from_world_size'], words)}"
    high = _end(step, "high")
    if high < 0:
        return f"{after} more {words['GPUs']} {would}make training slower"
    worth = interval(step["step_return"], step["step_return_low"], step["step_return_high"])
    less = f"less than {_part(threshold)} of its money's worth: {worth}"
    perhaps = "" if high < threshold else "perhaps "
    verb = "buy" if would else "buys"
    return f"{after} a step {perhaps}{would}{verb} {less}"


def knee_sentence(tables: Tables, words: Mapping[str, str]) -> str:
    """Up to which size a step still pays, in the unit of the returns, with the criterion."""
    knee = next(iter(tables["knees"]), None)
    if knee is None:
        return ""
    least = f"at least {_part(2 * knee['knee_share'] - 1)} of its money's worth"
    bought = "would buy" if knee["series"] == "predicted" else "bought"
    size = counted(knee["knee_world_size"], words)
    short = _first_short(tables)
    if short is None:
        sure = all(_end(step, "low") >= _threshold(step, knee) for step in tables["returns"])
        every = "Every" if sure else "Perhaps every"
        asked = "which the study asks of it"
        return f"{every} doubling up to {size} {bought} {least}, {asked}: no knee within the data."
    step, threshold = short
    perhaps = " perhaps" if _end(step, "high") >= threshold else ""
    if step is tables["returns"][0]:
        next_one = f"the step to {step['to_world_size']} {bought} {digits(step['step_return'], 2)}"
        return f"The knee is{perhaps} at {size}, the smallest size: {next_one}."
    return (
        f"The knee is{perhaps} at {size}: up to there every doubling {bought} {least}, "
        f"the next step {digits(step['step_return'], 2)}."
    )


def _first_short(tables: Tables) -> tuple[Record, float] | None:
    """The first step that does not pay, and what it should have bought of its cost."""
    knee = next(iter(tables["knees"]), None)
    step = next((step for step in tables["returns"] if not step["pays"]), None)
    if knee is None or step is None:
        return None
    return step, _threshold(step, knee)


def _threshold(step: Record, knee: Record) -> float:
    """What a step must buy of its cost to count as paying."""
    growth = step["to_world_size"] / step["from_world_size"]
    needed = growth * knee["knee_share"] ** math.log2(growth)
    return float((needed - 1) / (growth - 1))


def _end(step: Record, end: str) -> float:
    """An end of what a step returned, `low` or `high`; of an unstated noise where it has none."""
    if step[f"step_return_{end}"] is not None:
        return float(step[f"step_return_{end}"])
    growth = step["to_world_size"] / step["from_world_size"]
    noise = math.hypot(margin({}), margin({})) * (1 if end == "high" else -1)
    ratio = 1 + step["step_return"] * (growth - 1)
    return float((ratio * math.exp(noise) - 1) / (growth - 1))


def _part(share: float) -> str:
    return "half" if math.isclose(share, 0.5) else digits(share, 2)


def cost_title(tables: Tables, words: Mapping[str, str]) -> str:
    """What the largest size saves in time and adds in GPU-hours: whatever tokens and price."""
    sizes = sorted(tables["costs"], key=lambda row: int(row["world_size"]))
    if len(sizes) < 2:
        return "What a run costs at other sizes is not known"
    first, last = sizes[0], sizes[-1]
    at = {row["world_size"]: margin(row) for row in tables["best"]}
    noise = math.hypot(at[first["world_size"]], at[last["world_size"]])
    sooner = first["hours_per_token"] / last["hours_per_token"]
    more = last["gpu_hours_per_token"] / first["gpu_hours_per_token"]
    hours = f"{words['GPU']}-hours"
    bill = f"for {percent(abs(more - 1))} {'more' if more > 1 else 'fewer'} {hours}"
    if more >= 2:
        bill = f"for {times(more)} the {hours}"
    elif abs(more - 1) < NOISE_FLOOR:
        bill = f"for as many {hours}"
    elif abs(math.log(more)) <= noise:
        bill += ", which is within the noise"
    would = "would finish" if _foretold(sizes) else "finish"
    how = f"{times(sooner)} as fast as {first['world_size']}"
    if sooner < math.exp(noise):
        how = f"no sooner than {first['world_size']}"
    return f"{counted(last['world_size'], words)} {would} a run {how}, {bill}"


def layouts_title(tables: Tables, size: int, words: Mapping[str, str]) -> str:
    """Who is fastest at one size, and by how much."""
    at = f"At {counted(size, words)}"
    here = [row for row in tables["best"] if row["world_size"] == size]
    if not here:
        return f"{at} nothing that was tried ran"
    best = here[0]
    if best["runner_up_layout_name"] is None:
        return f"{at} only {best['layout_name']} {'fits' if _foretold(here) else 'ran'}"
    if best["tied"]:
        advised = best["advised_layout_name"]
        return f"{at} {advised} is advised and {_rivals(tables, best)} not told apart from it"
    lead = best["tokens_per_s"] / best["runner_up_tokens_per_s"] - 1
    return f"{at} {best['layout_name']} is fastest, {percent(lead, 1)} ahead"


def _rivals(tables: Tables, best: Record) -> str:
    """Those not told apart from the fastest, the advised one apart, in words."""
    names = {
        row["layout_name"]
        for row in tables["contenders"]
        if row["world_size"] == best["world_size"] and row["within_noise"]
    } - {best["advised_layout_name"]}
    if len(names) == 1:
        return f"{names.pop()} is"
    return f"{len(names)} other layouts are" if names else "a layout of its kind is"


def _foretold(rows: Sequence[Record]) -> bool:
    return bool(rows[0]["series"] == "predicted")
