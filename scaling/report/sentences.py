"""The report's sentences, computed from the tables: the answer, the titles, the key figures.

Every function takes the tables of one setting. A sentence the data cannot carry says so.
"""

from collections.abc import Mapping
from typing import Any

from scaling.analyse.advice import fewest_switches
from scaling.report import choice_findings, findings
from scaling.report.figures import figures
from scaling.report.numbers import amount, digits, interval, listed, percent, times
from scaling.report.palette import LAYOUT_SLOTS
from scaling.report.return_charts import HALF_SHARE
from scaling.report.tables import Record, Tables
from scaling.report.words import counted, words_for

Span = tuple[str, bool]  # text, and whether it is strong

STARVED_SHARE = 1.2  # above it the smallest size is a poor yardstick


def story(tables: Tables) -> dict[str, Any]:
    """Everything the page says about one setting, as plain values."""
    everything = tables
    tables = evidence(tables)
    setting = tables["settings"][0]
    words = words_for(setting["vendor"])
    named = {row["slot"]: row["layout_name"] for row in everything["contenders"]}
    coloured = sorted((slot, name) for slot, name in named.items() if slot <= LAYOUT_SLOTS)
    sizes = sorted({row["world_size"] for row in tables["outcomes"]})
    tried = sorted({row["world_size"] for row in everything["contenders"]})
    stated: dict[str, str] = {
        "throughput": throughput_title(tables, words),
        "utilisation": utilisation_title(tables, words),
        "returns": returns_title(tables, words),
        **findings.titles(tables, words),
    }
    if basis(everything) == "predicted":
        stated = {name: _foretold(title) for name, title in stated.items()}
    return {
        "setting_id": setting["setting_id"],
        "model": setting["model"],
        "cluster": setting["cluster"],
        "batch": batch_words(setting, words),
        "batch_short": batch_short(setting),
        "words": words,
        "sizes": sizes,
        "tried": tried,
        "shown_size": max(
            (row["world_size"] for row in tables["best"]), default=max(tried, default=None)
        ),
        "basis": basis(everything),
        "series": sorted({row["series"] for row in everything["contenders"]}),
        "coloured": coloured,
        "names": [named.get(slot, "") for slot in range(1, LAYOUT_SLOTS + 1)],
        "answer": answer(tables, words, predicted=basis(everything) == "predicted"),
        "beyond": beyond(everything, words),
        "knee": findings.knee_sentence(tables, words),
        "accuracy": accuracy(everything),
        "price": findings.price_note(setting, everything["costs"]),
        "brief": "".join(text for text, _ in advice_spans(tables, words)) or nothing_ran(tables),
        "note": note(tables, words),
        "figures": figures(tables, words),
        "titles": {
            "statistics": statistics_title(tables),
            **stated,
            **choice_findings.titles(everything, words),
            "memory": findings.memory_title(everything),
            "time": findings.time_title(everything, words),
            "accuracy": findings.accuracy_title(everything),
        },
        "at_size": {
            str(size): {
                "layouts": layouts_at(everything, tables, size, words),
                "map": findings.map_title(everything, size, words),
                **choice_findings.at_size(everything, size, words),
            }
            for size in tried
        },
    }


def batch_words(setting: Record, words: Mapping[str, str]) -> str:
    """What is kept equal while GPUs are added."""
    batch = f"{setting['kept_batch_size']} sequences of {setting['seq_length']} tokens"
    if setting["study_kind"] == "strong":
        return f"Strong scaling: {batch} a step at every number of {words['GPUs']}"
    return f"Weak scaling: {batch} a step for each {words['GPU']}"


def batch_short(setting: Record) -> str:
    """The same for a button: `strong 64 × 4096`."""
    return f"{setting['study_kind']} {setting['kept_batch_size']} × {setting['seq_length']}"


def evidence(tables: Tables) -> Tables:
    """The rows that sentences stand on, of one series: never two mixed (see `basis`)."""
    return tables.of_series(basis(tables))


def basis(tables: Tables) -> str:
    """The series that sentences stand on: measured here, else published, else predicted.

    Beside rows that ran, predictions have sentences of their own.
    """
    series = {row["series"] for row in tables["contenders"]}
    if not series:
        return "measured"
    return next(name for name in ("measured", "published", "predicted") if name in series)


def beyond(tables: Tables, words: Mapping[str, str]) -> str:
    """What is predicted beyond the sizes that ran; empty where nothing ran or is predicted."""
    if basis(tables) == "predicted":
        return ""
    predicted = tables.of_series("predicted")
    sizes = {row["world_size"] for row in predicted["best"]}
    near = [row for row in predicted["contenders"] if row["world_size"] in sizes]
    spans = advice_spans(Tables({**predicted.records, "contenders": near}), words)
    return findings.predicted_beyond(spans, predicted["returns"], words)


def accuracy(tables: Tables) -> str:
    """Whether the predictions had seen what they are held against."""
    known = any(row["predicted_tokens_per_s"] is not None for row in tables["statistics"])
    if not known:
        return ""
    predicted = [
        {"stack_fingerprint": row["predicted_from"]}
        for row in tables["statistics"]
        if row["predicted_from"] is not None
    ]
    return findings.accuracy_note(predicted)


def advice_spans(tables: Tables, words: Mapping[str, str]) -> list[Span]:
    """`tp 1, pp 2 from 8 to 16 GPUs, then ...`; empty where nothing ran."""
    good: dict[int, dict[str, float]] = {}
    for row in tables["contenders"]:
        if row["share_of_best"] is not None and (row["within_noise"] or row["position"] == 1):
            at_size = good.setdefault(row["world_size"], {})
            at_size[row["layout_name"]] = max(
                row["share_of_best"], at_size.get(row["layout_name"], 0.0)
            )
    spans: list[Span] = []
    for stretch in fewest_switches(good):
        first, last = stretch.from_world_size, stretch.to_world_size
        where = (
            f" on {counted(first, words)}"
            if first == last
            else f" from {first} to {counted(last, words)}"
        )
        spans += [(", then " if spans else "", False), (stretch.layout, True), (where, False)]
    return [span for span in spans if span[0]]


def answer(tables: Tables, words: Mapping[str, str], *, predicted: bool = False) -> list[Span]:
    """The first sentence of the report: what to use, and what the last step returned."""
    advice = advice_spans(tables, words)
    if not advice:
        return [(nothing_ran(tables), False)]
    opening = "Nothing was run here. Predicted: use " if predicted else "Use "
    spans: list[Span] = [(opening, False), *advice, (". ", False)]
    steps = tables["returns"]
    if steps:
        spans.append((_step_sentence(steps[-1], words), False))
    else:
        only = tables["best"][0]["world_size"]
        spans.append((f"Only {counted(only, words)} ran, so a return cannot be stated.", False))
    return spans


def _step_sentence(step: Record, words: Mapping[str, str]) -> str:
    share = interval(step["share"], step["share_low"], step["share_high"])
    where = f"From {step['from_world_size']} to {counted(step['to_world_size'], words)}"
    if step["share_high"] is not None and step["share_high"] < 0:
        return f"{where} throughput falls: each added {words['GPU']} returned {share} of its share."
    return f"{where} each added {words['GPU']} returned {share} of its share."


def nothing_ran(tables: Tables) -> str:
    """Why there is no answer."""
    done = tables["progress"][0]
    if not done["points"]:
        return f"Nothing can run: {combinations(done['refusals'])} refused."
    if not done["failed"]:
        return f"Nothing has run yet: {done['waiting']} points wait."
    rest = f"; {done['waiting']} have not run yet" if done["waiting"] else ""
    return f"No layout ran: {done['failed']} of {done['points']} points failed{rest}."


def note(tables: Tables, words: Mapping[str, str]) -> str:
    """What a reader of the answer must know, in small type."""
    setting, best = tables["settings"][0], tables["best"]
    said = [f"{setting['model']} on {setting['cluster']}."]
    if setting["vendor"] == "cpu":
        said.append(
            "Ranks share the cores of one machine: the curves tell about that machine, "
            "not about GPUs."
        )
    ties = [str(row["world_size"]) for row in best if row["tied"]]
    if ties:
        size = words["GPU"] if ties == ["1"] else words["GPUs"]
        said.append(
            f"At {listed(ties)} {size} the intervals of the two fastest layouts overlap: a tie. "
            "Where layouts tie, the one that needs fewer changes is named."
        )
    sizes = [row["world_size"] for row in tables["outcomes"] if row["outcome"] is not None]
    if best and sizes and min(sizes) < best[0]["world_size"]:
        said.append(f"Below {counted(best[0]['world_size'], words)} no layout tried ran.")
    if any(row["share"] > STARVED_SHARE for row in tables["returns"]):
        said.append(
            "Shares well above 1 mean that the smallest size that ran is a poor yardstick: "
            "it is starved."
        )
    stacks = {row["stack_fingerprint"] for row in best}
    if len(stacks) > 1:
        said.append(
            f"The fastest layouts come from {len(stacks)} software stacks, so steps between "
            "them also compare software."
        )
    waiting = tables["progress"][0]["waiting"]
    if best and waiting:
        which = "point has" if waiting == 1 else "points have"
        said.append(f"{waiting} {which} not run yet, so the fastest may change.")
    if tables["returns"]:
        said.append(f"Share: what a {words['GPU']} gave at the smallest size that ran.")
    return " ".join(said)


def statistics_title(tables: Tables) -> str:
    """How many points there are and what became of them."""
    done = tables["progress"][0]
    parts = [f"{done['ok']} of {done['points']} points ran"]
    if done["failed"]:
        parts.append(f"{done['failed']} failed")
    if done["waiting"]:
        parts.append(f"{done['waiting']} {'has' if done['waiting'] == 1 else 'have'} not run yet")
    if done["refusals"]:
        parts.append(f"{combinations(done['refusals'])} refused")
    return listed(parts)


def combinations(number: int) -> str:
    """`1 combination was`, `5 combinations were`."""
    return "1 combination was" if number == 1 else f"{number} combinations were"


def throughput_title(tables: Tables, words: Mapping[str, str]) -> str:
    """What the largest size gives against the smallest."""
    best = tables["best"]
    if not best:
        return "No throughput to show: nothing ran"
    if len(best) == 1:
        return f"Only {counted(best[0]['world_size'], words)} ran: scaling needs a second size"
    first, last = best[0], best[-1]
    factor = last["world_size"] / first["world_size"]
    where = f"From {first['world_size']} to {counted(last['world_size'], words)} ({times(factor)})"
    verb = "grows" if last["speed_up"] >= 1 else "falls to"
    top = max(best, key=lambda row: float(row["tokens_per_s"]))
    peak = "" if top is last else f"; it is highest at {top['world_size']}"
    return f"{where} throughput {verb} {times(last['speed_up'])}{peak}"


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
        return f"Every step returned at least {digits(least, 2)} of its share"
    after = f"After {counted(short['from_world_size'], words)} a further {words['GPU']}"
    if short["share_high"] is not None and short["share_high"] < 0:
        return f"{after} makes training slower"
    if short["share_high"] is not None and short["share_high"] >= HALF_SHARE:
        share = interval(short["share"], short["share_low"], short["share_high"])
        return f"{after} perhaps returns less than half of its share: {share}"
    return f"{after} returns less than half of its share"


def layouts_at(everything: Tables, tables: Tables, size: int, words: Mapping[str, str]) -> str:
    """`layouts_title` of what the sentences stand on; of predictions where nothing was tried."""
    tried = any(row["world_size"] == size for row in tables["contenders"])
    if tried and basis(everything) != "predicted":
        return layouts_title(tables, size, words)
    return _foretold(layouts_title(everything.of_series("predicted"), size, words))


def _foretold(title: str) -> str:
    """A title that stands on predictions says so."""
    return f"Predicted: {title}"


def layouts_title(tables: Tables, size: int, words: Mapping[str, str]) -> str:
    """Who is fastest at one size, and by how much."""
    at = f"At {counted(size, words)}"
    here = [row for row in tables["best"] if row["world_size"] == size]
    if not here:
        return f"{at} nothing that was tried ran"
    best = here[0]
    if best["runner_up_layout_name"] is None:
        return f"{at} only {best['layout_name']} ran"
    if best["tied"]:
        return f"{at} {best['layout_name']} and {best['runner_up_layout_name']} tie within noise"
    ahead = best["tokens_per_s"] / best["runner_up_tokens_per_s"] - 1
    lead = f"{at} {best['layout_name']} is fastest, {percent(ahead, 1)} ahead"
    return lead if best["tied"] is False else f"{lead}; without intervals that may be noise"
