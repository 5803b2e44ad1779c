"""Everything the page says and draws of one selection, computed from its tables.

A sentence that the data cannot carry says so.
"""

import functools
from typing import Any

from scaling.analyse.series import SERIES, Series, firmest
from scaling.report.charts.charts import OFFERED_AS, drawable
from scaling.report.sections import answer, findings, over_sizes
from scaling.report.sections.advice import DEFAULT_TOKENS, advice
from scaling.report.sections.captions import caption_words, caption_words_at
from scaling.report.tables import Record, Tables
from scaling.report.text import THIN, with_series

SERIES_KEY = {
    "measured": "● measured",
    "extended": "□ extended from short steps",
    "published": "○ published by others",
    "predicted": "◇ predicted (dashed lines)",
}
# Series with 80 % intervals, and what those are intervals of.
_EIGHTY = {"extended": "a step extended from short ones", "predicted": "a prediction"}


def story(everything: Tables) -> dict[str, Any]:
    """Everything the page says and draws of one selection, as plain values.

    Args:
        everything: the tables of one setting, with all series.
    """
    setting = everything["settings"][0]
    interval = interval_words(everything)
    shown = sorted({row["series"] for row in everything["contenders"]})
    short, series = batch_short(setting), main_series(everything)
    drawn = drawable(everything)
    by_series = {one: everything.of(setting["setting_id"], one) for one in SERIES}
    tables = by_series[series]
    sizes = sorted({row["world_size"] for row in tables["outcomes"]})
    tried = sorted({row["world_size"] for row in everything["contenders"]})
    firmest_at = {
        size: firmest(row for row in everything["contenders"] if row["world_size"] == size)
        for size in tried
    }
    ran = [row["world_size"] for row in tables["best"]]
    largest = max(sizes, default=1)
    words = {**everything.words} | {"interval": interval or "interval"}
    words |= caption_words(everything, interval)
    answered = {
        "batch": answer.batch_words(everything),
        "figures": answer.figures(tables),
        "note": answer.note(tables, full_steps=answer.has_full_steps(everything, series)),
        "beyond": answer.predicted_beyond(by_series["predicted"], ran=bool(ran))
        if series != "predicted"
        else "",
    }
    statistics = answer.statistics_title(tables)
    advised = advice(tables)
    tokens = float(advised["tokens"] or DEFAULT_TOKENS)
    price = float(advised["usd_per_gpu_hour"] or 0)
    words["hours"] = f"{words['GPU'][0].upper()}{words['GPU'][1:]}-hours of the run"
    words["cost"] = "Cost of the run ($)" if price else words["hours"]
    # a title stays above its chart while the reader hides measured values
    say = functools.partial(with_series, measured_too=len(shown) > 1)
    titles = {
        "throughput": say(over_sizes.throughput_title(tables), series),
        "returns": say(over_sizes.returns_title(tables), series),
    }
    knee = [over_sizes.knee_sentence(tables), over_sizes.law_sentence(tables)]
    return answered | {
        "setting_id": setting["setting_id"],
        "model": setting["model"],
        "cluster": setting["cluster"],
        "batch_short": short,
        "words": words,
        "sizes": sizes,
        "tried": tried,
        "shown_size": max(ran or tried, default=None),
        "basis": series,
        "series": shown,
        "offered_as": OFFERED_AS,
        "interval": interval,
        "key": "; ".join(
            [*(SERIES_KEY[one] for one in shown), *([f"intervals: {interval}"] if interval else [])]
        ),
        "advice": advised,
        "answer": advised["headline"]["text"] or answer.why_nothing_ran(tables),
        "tokens": tokens,
        "price": price,
        "drawn": drawn,
        "parameters": {  # of the charts: marks.PARAMETERS
            "sizes_": sizes,
            "beyond_": [*sizes, *(largest * 2**power for power in range(1, 6))],
            "tokens_": tokens,
            "price_": price,
        },
        "knee": " ".join(filter(None, knee)),
        "accuracy": findings.accuracy_note(everything),
        "slow_hosts": findings.slow_hosts_note(everything),
        "titles": titles
        | {
            "effects": say(findings.effects_title(tables), series),
            "statistics": statistics,
            "time": say(findings.time_title(everything), "measured"),
            "accuracy": findings.accuracy_title(everything),
            "collectives": findings.collectives_title(everything),
        },
        "at_size": {
            str(size): {
                "layouts": say(findings.layouts_title(by_series[here], size), here),
                "memory": findings.memory_title(everything, tables, size),
                "words": caption_words_at(everything, size),
            }
            for size, here in firmest_at.items()
        },
    }


def main_series(tables: Tables) -> Series:
    """The one series that sentences stand on, the firmest in which a layout ran: they never mix.

    Predictions beside rows that ran or failed have sentences of their own.
    """
    rows = tables["contenders"]
    ran = [row for row in rows if row["outcome"] == "ok" and row["series"] != "predicted"]
    return firmest(ran or rows)


def batch_short(setting: Record) -> str:
    """The same for a button: `strong 64 × 4096`."""
    batch = f"{setting['study_kind']} {setting['kept_batch_size']} × {setting['seq_length']}"
    return ", ".join(filter(None, (batch, setting["kept_choices"])))


def interval_words(tables: Tables) -> str:
    """Which intervals the charts of a setting show; empty where none is known."""
    kinds = []
    noise = [row for row in tables["noise"] if row["interval_half_width"] is not None]
    ran = [row for row in noise if row["series"] not in _EIGHTY]
    if ran:
        repeated = sum(row["repeated_layouts"] for row in ran)
        single = repeated < sum(row["layouts"] for row in ran)
        runs = ["one run"] * single + ["repeats"] * (repeated > 0)
        kinds.append(f"95{THIN}% interval of {' or '.join(runs)}")
    present = {row["series"] for row in noise}
    eighty = [what for series, what in _EIGHTY.items() if series in present]
    kinds += [f"80{THIN}% interval of {what}" for what in eighty]
    return " or ".join(kinds)
