"""How far the order of the layouts can be trusted: odds, optimism, short steps, drift, stops."""

import statistics
from collections import Counter
from typing import Any

from scaling.analyse.being_best import UNRESOLVED
from scaling.report.sections.sentences import basis, batch_short
from scaling.report.tables import Record, Tables
from scaling.report.text.numbers import listed, percent
from scaling.report.text.words import counted, words_for

_SURE = 0.01  # of a test of drift: by chance one in a hundred
_STOPPED = {
    "asked": "ran the steps that were asked for",
    "precise": "stopped once the median was precise enough",
    "at_most": "ended at the limit of steps before it was",
    "not_steady": "never became steady",
}


def order(tables: Tables) -> dict[str, Any] | None:
    """What the page says of all settings; None where nothing was measured.

    `sizes`: who is likeliest the fastest at each size of at least two layouts; `notes`: sentences.
    """
    settings = {row["setting_id"]: row for row in tables["settings"]}
    spoken_of = {setting_id: basis(tables.of(setting_id)) for setting_id in settings}
    models = Counter(setting["model"] for setting in settings.values())
    clusters = {setting["cluster"] for setting in settings.values()}
    names = {
        number: ", ".join(
            [
                one["model"],
                *([one["cluster"]] if len(clusters) > 1 else []),
                *([batch_short(one)] if models[one["model"]] > 1 else []),
            ]
        )
        for number, one in settings.items()
    }
    told = [
        row
        for row in tables["optimism"]
        if row["layouts"] > 1 and row["series"] == spoken_of[row["setting_id"]]
    ]
    stacks = Counter((row["setting_id"], row["world_size"]) for row in told)

    def of_software(row: Record) -> str:
        name = names[row["setting_id"]]
        if stacks[row["setting_id"], row["world_size"]] == 1:
            return name
        return f"{name}, {(row['stack_fingerprint'] or 'unnamed').removeprefix('published: ')}"

    sizes = [
        row
        | {
            "model": of_software(row),
            "size": counted(row["world_size"], words_for(settings[row["setting_id"]]["vendor"])),
            "optimism": max(0.0, row["optimism"]),
        }
        for row in told
    ]
    notes = [*_extension(tables["extension"]), *_drift(tables["drift"]), *_stops(tables["stops"])]
    if not sizes and not notes:
        return None
    several = len({row["model"] for row in sizes}) > 1
    return {"headline": _headline(sizes), "sizes": sizes, "several": several, "notes": notes}


def _headline(sizes: list[Record]) -> str:
    if not sizes:
        return "How the steps were measured"
    open_ones = [row for row in sizes if row["probability_of_winner"] <= UNRESOLVED[1]]
    if not open_ones:
        return "At every size the fastest layout is the best beyond doubt"
    if len(open_ones) == len(sizes):
        return "At no size is it beyond doubt which layout is the best"
    return f"At {len(open_ones)} of {len(sizes)} sizes it is not beyond doubt which layout is best"


def _extension(rows: list[Record]) -> list[str]:
    """What short steps are wrong by, where full ones ran too."""
    if not rows:
        return []
    errors = [abs(row["error"]) for row in rows if row["error"] is not None]
    ran = "1 point" if len(rows) == 1 else f"{len(rows)} points"
    if not errors:
        return [f"{ran} ran short and full steps: nothing could be extended from the short ones."]
    covered = sum(row["covered"] is True for row in rows)
    sentence = (
        f"{ran} ran full steps beside short ones: extended from these the step is wrong by "
        f"{percent(statistics.median(errors), 1)} in the median and {percent(max(errors), 1)} at "
        f"most, and the measured one lies in the 80 % interval of {covered} of {len(errors)}."
    )
    bent = len(rows) - len(errors)
    if bent:
        sentence += f" The accumulations of {bent} were on no line, and were measured in full."
    return [sentence]


def _drift(rows: list[Record]) -> list[str]:
    """What time, the hour and the node did to a step, test by test."""
    if not rows:
        return []
    sure = [row for row in rows if row["p_value"] <= _SURE]
    tested = max(row["runs"] for row in rows)
    held = {"repeats": "the other runs of its layout", "prediction": "its prediction"}
    against = listed(sorted({held[row["residual_of"]] for row in rows}))
    if not sure:
        run_tests = {row["test"] for row in rows}
        tests = listed([word for word in ("time", "hour", "node") if word in run_tests])
        return [
            f"No drift: over {tested} runs, each held against {against}, a step's time does not "
            f"depend on {tests} (shuffled residuals, p above {_SURE:g})."
        ]
    found = []
    for row in sure:
        change = f"{percent(abs(row['effect']), 1)} {'longer' if row['effect'] > 0 else 'shorter'}"
        where = {
            "time": f"steps become {change} a day",
            "hour": f"between the hours of a day steps differ by {percent(row['effect'], 1)}",
            "node": f"runs on {row['host']} take {change} than elsewhere",
        }[row["test"]]
        found.append(f"{where} (p {max(row['p_value'], 0.0005):.2g})")
    return [f"Drift: over {tested} runs, each held against {against}, {listed(found)}."]


def _stops(rows: list[Record]) -> list[str]:
    """Why steps ended, where it was not simply their number."""
    if all(row["stopped"] == "asked" for row in rows):
        return []
    total: dict[str, int] = {}
    for row in rows:
        total[row["stopped"]] = total.get(row["stopped"], 0) + row["points"]
    parts = [f"{total[name]} {words}" for name, words in _STOPPED.items() if name in total]
    return [f"Of {sum(total.values())} points {listed(parts)}."]
