"""The report's sentences, computed from the tables: everything the page says of one setting.

Every function takes the tables of one setting. A sentence the data cannot carry says so.
"""

from collections.abc import Mapping
from typing import Any

from scaling.analyse.series import SERIES, Series
from scaling.report.sections import answers, findings, other_findings, size_findings
from scaling.report.sections.advice import advice
from scaling.report.sections.figures import advised_memory, figures
from scaling.report.tables import Record, Tables
from scaling.report.text.words import called, words_for

# What has 80 % intervals, and of what they are.
_EIGHTY = {"extended": "a step extended from short ones", "predicted": "a prediction"}


def story(tables: Tables) -> dict[str, Any]:
    """Everything the page says about one setting, as plain values."""
    everything = tables
    tables = evidence(tables)
    setting = tables["settings"][0]
    words = words_for(setting["vendor"]) | {"interval": interval_words(everything)}
    sizes = sorted({row["world_size"] for row in tables["outcomes"]})
    tried = sorted({row["world_size"] for row in everything["contenders"]})
    kind = basis(everything)
    advised = advice(tables, kind, words)
    stated: dict[str, str] = {
        "throughput": size_findings.throughput_title(tables, words),
        "returns": size_findings.returns_title(tables, words),
        "effects": findings.effects_title(tables),
        "cost": size_findings.cost_title(tables, words),
    }
    stated = {name: called(title, kind) for name, title in stated.items()}
    memory = findings.memory_title(everything)
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
        "basis": kind,
        "advice": advised.json(),
        "series": sorted({row["series"] for row in everything["contenders"]}),
        "answer": advised.headline.text or answers.nothing_ran(tables),
        "beyond": beyond(everything, words),
        "knee": " ".join(
            part
            for part in (
                size_findings.knee_sentence(tables, words),
                findings.law_sentence(tables, words),
            )
            if part
        ),
        "accuracy": findings.accuracy_note(everything),
        "slow_hosts": other_findings.slow_hosts_note(everything),
        "price_note": findings.price_note(setting, everything["costs"], words),
        "note": answers.note(tables, kind, words),
        "figures": figures(tables, words),
        "titles": {
            "statistics": answers.statistics_title(tables, kind),
            **stated,
            "time": findings.time_title(everything, words),
            "accuracy": findings.accuracy_title(everything),
            "peers": other_findings.peers_title(everything, words),
            "collectives": other_findings.collectives_title(everything),
        },
        "at_size": {
            str(size): {
                "layouts": layouts_at(everything, tables, size, words),
                "map": findings.map_title(everything, size, words),
                "memory": memory or called(advised_memory(tables, size, words), kind),
            }
            for size in tried
        },
    }


def batch_words(setting: Record, words: Mapping[str, str]) -> str:
    """What is kept equal while GPUs are added."""
    batch = f"{setting['kept_batch_size']} sequences of {setting['seq_length']} tokens"
    if setting["kept_choices"]:
        batch += f" with {setting['kept_choices']}"
    if setting["study_kind"] == "strong":
        return f"Strong scaling: {batch} a step at every number of {words['GPUs']}"
    return f"Weak scaling: {batch} a step for each {words['GPU']}"


def batch_short(setting: Record) -> str:
    """The same for a button: `strong 64 × 4096`."""
    batch = f"{setting['study_kind']} {setting['kept_batch_size']} × {setting['seq_length']}"
    return ", ".join(filter(None, (batch, setting["kept_choices"])))


def interval_words(tables: Tables) -> str:
    """Which interval the charts of a setting show, for `{interval}` in captions and tooltips."""
    kinds = []
    noise = [row for row in tables["noise"] if row["interval_half_width"] is not None]
    ran = [row for row in noise if row["series"] not in _EIGHTY]
    if ran:
        repeated, layouts = (
            sum(row[name] for row in ran) for name in ("repeated_layouts", "layouts")
        )
        one_run = " of one run" if not repeated else " (of one run where nothing was repeated)"
        kinds.append("95 % interval" + ("" if repeated == layouts else one_run))
    given = {row["series"] for row in noise}
    kinds += [f"80 % interval of {what}" for series, what in _EIGHTY.items() if series in given]
    return " or ".join(kinds) or "interval"


def evidence(tables: Tables) -> Tables:
    """The rows that sentences stand on, of one series: never two mixed (see `basis`)."""
    return tables.of_series(basis(tables))


def basis(tables: Tables) -> Series:
    """The series that sentences stand on (see `SERIES`).

    Beside rows that ran, predictions have sentences of their own.
    """
    series = {row["series"] for row in tables["contenders"]}
    if not series:
        return "measured"
    return next(name for name in SERIES if name in series)


def beyond(tables: Tables, words: Mapping[str, str]) -> str:
    """What is predicted beyond the sizes that ran; empty where nothing ran or is predicted."""
    if basis(tables) == "predicted":
        return ""
    return answers.beyond(tables.of_series("predicted"), words)


def layouts_at(everything: Tables, tables: Tables, size: int, words: Mapping[str, str]) -> str:
    """`layouts_title` of what the sentences stand on; of predictions where nothing was tried."""
    tried = any(row["world_size"] == size for row in tables["contenders"])
    series = basis(everything) if tried else "predicted"
    rows = tables if tried else everything.of_series("predicted")
    return called(size_findings.layouts_title(rows, size, words), series)
