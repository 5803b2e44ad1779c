"""Everything the page says of one selection, computed from its tables."""

from itertools import groupby
from typing import Any

from scaling.layout.names import exact
from scaling.report.sections import purchase
from scaling.report.sections.runs import runs
from scaling.report.tables import Record, Tables
from scaling.report.text import UNKNOWN, amount, gib, gpu_count, percent, significant

COPIED = 3  # layouts of a size with a run to copy, the advised one with those of all programs
SHOWN_LAYOUTS = 12  # of a size; the table of points has all


def story(tables: Tables) -> dict[str, Any]:
    """Everything the page says of one selection, as plain values.

    `options`, `opening`: see `purchase`.   `answer`: what it says without a script.
    `sizes`: the layouts of each size.   `data`: what the page's script reads.
    """
    group = tables["comparison_groups"][0]
    options, opening = purchase.options(tables), purchase.start(tables)
    known, price = group["total_params"], group["usd_per_gpu_hour"]
    tokens = float(purchase.TOKENS_PER_PARAMETER * known) if known else purchase.DEFAULT_TOKENS
    told: dict[str, Any] = {
        "id": group["group_id"],
        "model": group["model"],
        "cluster": group["cluster"],
        "batch": batch_words(group),
        "kind": kind_words(tables),
        "words": dict(tables.words),
        "tokens": tokens,
        "price": price,
        "options": options,
        "opening": opening,
        "warning": purchase.warning(tables),
    }
    told["data"] = {name: told[name] for name in told if name not in ("kind", "warning")}
    if options and opening is not None:
        use, cheaper, faster = purchase.choose(options, opening)
        told |= {
            "use": use,
            "headline": purchase.headline(use, tokens, price, tables.words),
            "between": purchase.between(use, tokens, price, tables.words),
            "others": [
                (name, purchase.offer(one, tokens, price, tables.words))
                for name, one in (("Cheaper", cheaper), ("Faster", faster))
                if one
            ],
        }
    else:
        told["headline"] = purchase.why_nothing(tables)
    told["sizes"] = {
        size: layouts_of(tables, list(rows))
        for size, rows in groupby(tables["estimates"], key=lambda row: int(row["world_size"]))
    }
    return told


def batch_words(group: Record) -> str:
    """The batch of a selection for a list: `strong 64 × 4096`."""
    batch = f"{group['study_kind']} {group['kept_batch_size']} × {group['seq_length']}"
    return ", ".join(filter(None, (batch, group["kept_choices"])))


def kind_words(tables: Tables) -> str:
    """The constants while GPUs are added."""
    group = tables["comparison_groups"][0]
    batch = f"{group['kept_batch_size']} sequences of {group['seq_length']} tokens"
    if group["kept_choices"]:
        batch += f" with {group['kept_choices']}"
    if group["study_kind"] == "strong":
        return f"strong scaling: {batch} a step"
    return f"weak scaling: {batch} a step for each {tables.words['GPU']}"


def layouts_of(tables: Tables, rows: list[Record]) -> dict[str, Any]:
    """The layouts of one size: `title`, `rows` in the order of `place`, how many `more` there are.

    `source` is that of the advised layout unless it was measured; rows of another are `tagged`. A
    row's `bar`, `low` and `high` are shares of the best in per cent, `runs` the texts to copy of
    the first layouts.
    """
    group = tables["comparison_groups"][0]
    best = next((row for row in rows if row["advised"]), None)
    at = tables.gpus(rows[0]["world_size"])
    predicted = all(row["source"] == "predicted" for row in rows)
    title = f"{at}: no layout {'fits' if predicted else 'ran'}"
    if best:
        title = f"{at}: {best['layout_name']}, {amount(best['tokens_per_s'])} tokens/s"
    level = round(100 * best["level"]) if best else None
    ran = [row for row in rows if row["outcome"] == "ok"]
    failed = [row for row in rows if row["outcome"] != "ok"]
    kept = max(SHOWN_LAYOUTS - min(len(failed), 4), sum(row["close"] for row in ran))
    shown = [*ran[:kept], *failed[: max(4, SHOWN_LAYOUTS - len(ran))]]
    copied = sorted(ran[:kept], key=lambda row: not row["candidate"])[:COPIED]
    return {
        "title": title,
        "level": level,
        "source": best["source"] if best and best["source"] != "measured" else None,
        "more": len(rows) - len(shown),
        "rows": [
            _layout(row)
            | {"tagged": best is not None and row["source"] != best["source"]}
            | {"runs": runs(group, row, programs=row["advised"]) if row in copied else {}}
            for row in shown
        ],
    }


def _layout(row: Record) -> dict[str, Any]:
    share = row["share_of_best"]
    low, high = row["share_low"], row["share_high"]
    return {
        "name": row["layout_name"],
        "exact": exact(row),
        "source": row["source"],
        "advised": row["advised"],
        "slot": row["slot"],
        "outcome": row["outcome"],
        "error": row["error_message"],
        "share": purchase.share_words(row),
        "bar": None if share is None else round(100 * share),
        "low": None if low is None else round(100 * low),
        "high": None if high is None else round(100 * high),
        "p_best": percent(row["p_best"]) if row["p_best"] is not None else UNKNOWN,
        "loss": percent(row["expected_loss"], 1) if row["expected_loss"] is not None else UNKNOWN,
        "rate": amount(row["tokens_per_s"]),
        "mfu": percent(row["mfu"]),
        "step": UNKNOWN if row["step_time_s"] is None else significant(row["step_time_s"]),
        "memory": gib(row["peak_memory_bytes"] or row["predicted_memory_bytes"]),
        "fits": _fits(row),
    }


def _fits(row: Record) -> str:
    """The chance to fit of a prediction, or the allocator's retries of a run; else empty."""
    if row["source"] == "predicted":
        return percent(row["fits_probability"], predicted=True)
    retries = row["num_alloc_retries"]
    return f"{retries} allocator {'retry' if retries == 1 else 'retries'}" if retries else ""


def matrix(stories: list[dict[str, Any]], selections: list[Tables]) -> dict[str, Any]:
    """Every selection by every size: the advised layout, its rate, what a run takes.

    `sizes`: the columns; `heads`: of each, `8 GPUs` if all rows count the same.   `rows`: those of
    one model and batch together, so that clusters stand side by side; of a row `cells` by size.
    """
    rows = []
    for told, tables in zip(stories, selections, strict=True):
        cells = {
            row["world_size"]: {
                "name": row["layout_name"],
                "rate": amount(row["tokens_per_s"]),
                "source": row["source"],
                "option": option,
            }
            for row, option in zip(tables["sizes"], told["options"], strict=True)
        }
        rows.append({"story": told, "cells": cells})
    rows.sort(
        key=lambda row: (row["story"]["tokens"], row["story"]["model"], row["story"]["batch"])
    )
    tried = {size for told in stories for size in told["sizes"]}
    words = {told["words"]["GPUs"]: told["words"] for told in stories}
    one = next(iter(words.values())) if len(words) == 1 else None
    heads = {size: gpu_count(size, one) if one else str(size) for size in sorted(tried)}
    return {"heads": heads, "sizes": [*heads], "rows": rows}
