"""Sections about the whole study: pairs of engines, how sure the order is, a paper's findings."""

import statistics
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scaling.analyse.being_best import UNRESOLVED
from scaling.analyse.drift import SIGNIFICANT
from scaling.analyse.replication import NOT_REPRODUCED, NOT_TESTABLE, REPRODUCED, SCHEMA
from scaling.analyse.series import firmest
from scaling.errors import InputError, counted
from scaling.report.sections.story import batch_short, main_series
from scaling.report.tables import Record, Tables
from scaling.report.text import THIN, device_words, gpu_count, listed, percent, ratio, with_series
from scaling.study.paths import StudyPaths

MOST_PAIRS = 12  # layouts of a size in the table of engines, the fastest first
IN_PART = "in part"
_TAG = {REPRODUCED: "measured", IN_PART: "published", NOT_REPRODUCED: "failed"}  # CSS classes
_STOPPED = {
    "asked": "ran the steps that were asked for",
    "precise": "stopped once the median was precise enough",
    "at_most": "reached the limit of steps before it was",
    "not_steady": "never became steady",
}


def engine_section(tables: Tables) -> dict[str, Any] | None:
    """The same layouts under two engines; None where no layout was asked of two.

    `headline`; `pairs`: of each size the fastest, with `model` and `says`, which is the ratio and
    its interval or why there is none; `more`: the number of pairs that only the table has.
    """
    rows = tables["engines"]
    if not rows:
        return None
    models = {row["setting_id"]: row["model"] for row in tables["settings"]}
    count: Counter[tuple[Any, ...]] = Counter()
    pairs = []
    for row in rows:
        size = row["setting_id"], row["series"], row["world_size"], row["from_engine"]
        count[size] += 1
        if count[size] <= MOST_PAIRS:
            pairs.append({**row, "says": _pair_words(row), "model": models[row["setting_id"]]})
    return {"headline": _engine_headline(rows), "pairs": pairs, "more": len(rows) - len(pairs)}


def _pair_words(row: Record) -> str:
    if row["ratio"] is None:
        side = "from" if row["from_outcome"] != "ok" else "to"
        failure = f"{row[f'{side}_engine']}: {row[f'{side}_outcome']}"
        return failure + (f", {row['reason']}" if row["reason"] else "")
    return ratio(row["ratio"], row["ratio_low"], row["ratio_high"])


def _engine_headline(rows: list[Record]) -> str:
    """What one series says of the engines, the firmest there is: series are never mixed."""
    first, second = rows[0]["from_engine"], rows[0]["to_engine"]
    series = firmest(rows)
    rows = [row for row in rows if row["series"] == series]
    both = [row for row in rows if row["ratio"] is not None]
    alone = {
        engine: sum(row[f"{side}_outcome"] == "ok" and row["ratio"] is None for row in rows)
        for side, engine in (("from", first), ("to", second))
    }
    only = ", ".join(f"{number} under {engine} alone" for engine, number in alone.items() if number)
    ran = "fit" if series == "predicted" else "ran"
    if not both:
        title = f"No layout {ran} under {first} and {second}" + (f": {only}" if only else "")
        return with_series(title, series)
    faster = sum(row["ratio_low"] > 1 for row in both)
    slower = sum(row["ratio_high"] < 1 for row in both)
    verdict = f"{second} is faster in {faster} and {first} in {slower}"
    if not faster and not slower:
        verdict = f"{first} and {second} are told apart in none"
    title = (
        f"Of {len(both)} layouts that {ran} under both engines, {verdict}"
        + ("; the others are within the noise" if 0 < faster + slower < len(both) else "")
        + (f" ({only})" if only else "")
    )
    return with_series(title, series)


def order_section(tables: Tables) -> dict[str, Any] | None:
    """How far the order of the layouts can be trusted; None where nothing was measured.

    `headline`; `sizes`: which layout is likeliest the best, at each size of at least two layouts;
    `several`: whether the sizes are of several models; `notes`: sentences.
    """
    settings = {row["setting_id"]: row for row in tables["settings"]}
    series = {setting_id: main_series(tables.of(setting_id)) for setting_id in settings}
    rows = [
        row
        for row in tables["optimism"]
        if row["layouts"] > 1 and row["series"] == series[row["setting_id"]]
    ]
    stacks = Counter((row["setting_id"], row["world_size"]) for row in rows)
    names = _setting_names(settings)
    sizes = []
    for row in rows:
        name = names[row["setting_id"]]
        if stacks[row["setting_id"], row["world_size"]] > 1:
            name += f", {(row['stack_fingerprint'] or 'unnamed').removeprefix('published: ')}"
        words = device_words(settings[row["setting_id"]]["vendor"])
        size = gpu_count(row["world_size"], words)
        sizes.append(row | {"model": name, "size": size, "optimism": max(0.0, row["optimism"])})
    notes = [*_extension(tables["extension"]), *_drift(tables["drift"]), *_stops(tables["stops"])]
    if not sizes and not notes:
        return None
    several = len({row["model"] for row in sizes}) > 1
    return {"headline": _order_headline(sizes), "sizes": sizes, "several": several, "notes": notes}


def _setting_names(settings: dict[int, Record]) -> dict[int, str]:
    """The model, with the cluster and the batch where those tell settings apart."""
    models = Counter(setting["model"] for setting in settings.values())
    clusters = {setting["cluster"] for setting in settings.values()}
    return {
        setting_id: ", ".join(
            [
                setting["model"],
                *([setting["cluster"]] if len(clusters) > 1 else []),
                *([batch_short(setting)] if models[setting["model"]] > 1 else []),
            ]
        )
        for setting_id, setting in settings.items()
    }


def _order_headline(sizes: list[Record]) -> str:
    if not sizes:
        return "How the steps were measured"
    clear = sum(row["probability_of_winner"] > UNRESOLVED[1] for row in sizes)
    some = f"all {clear}" if clear == len(sizes) else f"{clear} of {len(sizes)}"
    at = f"At {some} sizes compared one layout is"
    if not clear:
        at = "At no size compared is one layout"
    elif len(sizes) == 1:
        at = "At the only size compared one layout is"
    return f"{at} the best with a probability above {percent(UNRESOLVED[1])}"


def _extension(rows: list[Record]) -> list[str]:
    """The error of steps extended from short ones, where full ones ran too."""
    if not rows:
        return []
    errors = [abs(row["error"]) for row in rows if row["error"] is not None]
    ran = counted(len(rows), "point")
    if not errors:
        return [f"{ran} ran short and full steps: nothing could be extended from the short ones."]
    covered = sum(row["covered"] is True for row in rows)
    sentence = (
        f"{ran} ran full steps beside short ones: the step extended from the short ones is off by "
        f"{percent(statistics.median(errors), 1)} in the median and {percent(max(errors), 1)} at "
        f"most, and its 80{THIN}% interval holds the measured step in {covered} of {len(errors)}."
    )
    bent = len(rows) - len(errors)
    if bent:
        points = counted(bent, "point")
        sentence += f" The short steps of {points} lay on no line, so full steps were measured."
    return [sentence]


def _drift(rows: list[Record]) -> list[str]:
    """How step times depend on time, hour and node, test by test."""
    if not rows:
        return []
    significant = [row for row in rows if row["p_value"] <= SIGNIFICANT]
    runs = max(row["runs"] for row in rows)
    yardsticks = {
        "repeats": "the other runs of its layout",
        "prediction": "those of its size by its prediction",
    }
    against = listed(sorted({yardsticks[row["residual_of"]] for row in rows}))
    compared = f"over {runs} runs, each compared with {against}"
    if not significant:
        tested = {row["test"] for row in rows}
        tests = listed([test for test in ("time", "hour", "node") if test in tested])
        return [
            f"No drift is seen: {compared}, a step's time shows no dependence on {tests} (shuffled "
            f"residuals, p above {SIGNIFICANT:g})."
        ]
    several = len({row["cluster"] for row in rows}) > 1
    effects = []
    for row in significant:
        ratio = row["change"] if row["test"] == "time" else row["effect"]
        change = f"{percent(abs(ratio), 1)} {'longer' if ratio > 0 else 'shorter'}"
        effect = {
            "time": f"steps become {change} from the first run to the last",
            "hour": f"between the hours of the runs steps differ by {percent(ratio, 1)}",
            "node": f"runs on {row['host']} take {change} than elsewhere",
        }[row["test"]]
        where = f" on {row['cluster']}" if several and row["test"] != "node" else ""
        effects.append(f"{effect}{where} (p {max(row['p_value'], 0.0005):.2g})")
    return [f"Drift: {compared}, {listed(effects)}."]


def _stops(rows: list[Record]) -> list[str]:
    """Why points stopped, unless all ran the steps that were asked for."""
    if all(row["stopped"] == "asked" for row in rows):
        return []
    total: Counter[str] = Counter()
    for row in rows:
        total[row["stopped"]] += row["points"]
    parts = [f"{total[name]} {words}" for name, words in _STOPPED.items() if name in total]
    return [f"Of {counted(total.total(), 'point')} {listed(parts)}."]


def replication_section(study_dir: Path) -> dict[str, Any] | None:
    """The findings of a paper and what this study says to them; None where it repeats no paper.

    `headline`; `findings`, most reproduced first. A finding's `verdict` is that of all its answers,
    or 'in part'; its `answers` have series, subject, what was observed and a verdict each.
    """
    path = StudyPaths(study_dir).table("replication")
    if not path.exists():
        return None
    rows = _read_replication(path)
    findings = [_finding(list(group)) for _, group in groupby(rows, lambda row: row["finding"])]
    counts = Counter(finding["verdict"] for finding in findings)
    order = (REPRODUCED, IN_PART, NOT_REPRODUCED, NOT_TESTABLE)
    findings.sort(key=lambda finding: order.index(finding["verdict"]))
    only_predicted = {row["series"] for row in rows if row["series"]} == {"predicted"}
    alone = ", by the prediction alone" if only_predicted else ""
    return {"headline": _replication_headline(counts) + alone, "findings": findings}


def _read_replication(path: Path) -> list[Record]:
    try:
        table = pq.ParquetFile(path).read().select(SCHEMA.names).cast(SCHEMA)
        table.validate(full=True)
        rows: list[Record] = table.to_pylist()
    except (pa.ArrowException, OSError, KeyError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: is no table of this project: {reason}") from error
    verdicts = {REPRODUCED, NOT_REPRODUCED, NOT_TESTABLE}
    if any(row["verdict"] not in verdicts for row in rows):
        raise InputError(f"{path}: is no table of this project; `scaling tabulate` writes it")
    return rows


def _finding(rows: list[Record]) -> dict[str, Any]:
    answered = [row for row in rows if row["verdict"] != NOT_TESTABLE]
    verdicts = {row["verdict"] for row in answered}
    verdict = NOT_TESTABLE if not verdicts else verdicts.pop() if len(verdicts) == 1 else IN_PART
    measured = {row["series"] for row in answered} != {"predicted"}
    reproduced = sum(row["verdict"] == REPRODUCED for row in answered)
    return {
        "claim": rows[0]["claim"],
        "source": rows[0]["source"],
        "criterion": rows[0]["criterion"],
        "verdict": verdict,
        "class": _TAG.get(verdict, "waiting") if measured else "predicted",
        "count": f"{reproduced} of {len(answered)}" if verdict == IN_PART else None,
        "answers": rows,
    }


def _replication_headline(counts: Counter[str]) -> str:
    """`Of 8 findings of the paper 6 are reproduced, 1 in part and 1 is not`."""
    parts = []
    if number := counts[REPRODUCED]:
        parts.append(f"{number} {'is' if number == 1 else 'are'} reproduced")
    if number := counts[IN_PART]:
        parts.append(f"{number} in part")
    if number := counts[NOT_REPRODUCED]:
        parts.append(f"{number} {'is' if number == 1 else 'are'} not")
    if number := counts[NOT_TESTABLE]:
        parts.append(f"{number} cannot be tested here")
    findings = "finding" if counts.total() == 1 else "findings"
    return f"Of {counts.total()} {findings} of the paper {listed(parts)}"
