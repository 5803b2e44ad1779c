"""Titles of the sections over the number of GPUs: throughput, utilisation, returns, layouts."""

from collections.abc import Mapping

from scaling.report.charts.returns import HALF_SHARE
from scaling.report.sections.leads import NOISE_FLOOR, PREDICTED_TIE, leaders, noise
from scaling.report.tables import Record, Tables
from scaling.report.text.numbers import amount, digits, interval, listed, percent, times
from scaling.report.text.words import counted


def throughput_title(tables: Tables, words: Mapping[str, str]) -> str:
    """What the largest size gives against the smallest."""
    best = tables["best"]
    if not best:
        return "No throughput to show: nothing ran"
    if len(best) == 1:
        ran = "is predicted" if _foretold(best) else "ran"
        return f"Only {counted(best[0]['world_size'], words)} {ran}: scaling needs a second size"
    first, last = best[0], best[-1]
    factor = last["world_size"] / first["world_size"]
    where = f"From {first['world_size']} to {counted(last['world_size'], words)} ({times(factor)})"
    verb = "grows" if last["speed_up"] >= 1 else "falls to"
    if _foretold(best):
        verb = "would grow" if last["speed_up"] >= 1 else "would fall to"
    change = f"{verb} {times(last['speed_up'])}"
    floor = noise(tables, last["series"])
    if 1 / (1 + floor) <= last["speed_up"] <= 1 + floor:
        change = "would stay the same" if _foretold(best) else "stays the same"
    tops = leaders(tables, best)
    peak = "" if last in tops else f"; it is highest at {tops[0]['world_size']}"
    if peak and len(tops) > 1:
        peak = (
            f"; it is highest at {listed([str(n) for n in sorted(r['world_size'] for r in tops)])}"
        )
    return f"{where} throughput {change}{peak}"


def utilisation_title(tables: Tables, words: Mapping[str, str]) -> str:
    """MFU, or FLOP/s where no peak is published, at the two ends."""
    best = tables["best"]
    if not best:
        return "No utilisation to show: nothing ran"
    first, last = best[0], best[-1]

    def value(row: Record) -> str:
        if row["mfu"] is not None:
            return percent(row["mfu"], 1)
        return amount(row["model_flop_per_s_per_gpu"], "FLOP/s")

    what = "MFU" if first["mfu"] is not None else f"The rate of one {words['GPU']}"
    start = f"{what} is {value(first)} on {counted(first['world_size'], words)}"
    if len(best) == 1:
        return start
    return f"{start}, {value(last)} on {last['world_size']}"


def returns_title(tables: Tables, words: Mapping[str, str]) -> str:
    """After which size a further GPU stops paying."""
    steps = tables["returns"]
    if not steps:
        return "Only one size ran: no marginal return"
    short = next((step for step in steps if step["share"] < HALF_SHARE), None)
    if short is None:
        least = min(step["share"] for step in steps)
        returned = "would return" if _foretold(steps) else "returned"
        return f"Every step {returned} at least {digits(least, 2)} of its share"
    returns = "would return" if _foretold(steps) else "returns"
    after = f"After {counted(short['from_world_size'], words)} a further {words['GPU']}"
    if short["share_high"] is not None and short["share_high"] < 0:
        return f"{after} {'would make' if _foretold(steps) else 'makes'} training slower"
    high = short["share_high"]
    if high is None:  # the rates of both sizes carry the noise, and their difference is smaller
        high = short["share"] + 3 * noise(tables, short["series"])
    if high >= HALF_SHARE:
        share = interval(short["share"], short["share_low"], short["share_high"])
        return f"{after} perhaps {returns} less than half of its share: {share}"
    return f"{after} {returns} less than half of its share"


def _foretold(rows: list[Record]) -> bool:
    return bool(rows[0]["series"] == "predicted")


def layouts_title(tables: Tables, size: int, words: Mapping[str, str]) -> str:
    """Who is fastest at one size, and by how much."""
    at = f"At {counted(size, words)}"
    here = [row for row in tables["best"] if row["world_size"] == size]
    if not here:
        return f"{at} nothing that was tried ran"
    best = here[0]
    if best["runner_up_layout_name"] is None:
        return f"{at} only {best['layout_name']} {'fits' if _foretold(here) else 'ran'}"
    ahead = best["tokens_per_s"] / best["runner_up_tokens_per_s"] - 1
    if best["tied"] or ahead <= (PREDICTED_TIE if _foretold(here) else NOISE_FLOOR):
        return f"{at} {best['layout_name']} and {best['runner_up_layout_name']} tie within noise"
    lead = f"{at} {best['layout_name']} is fastest, {percent(ahead, 1)} ahead"
    return lead if best["tied"] is False else f"{lead}; no interval was measured"
