"""Tooltips: the same words in the same order in every chart."""

from typing import Any

import altair as alt


def tooltips(*fields: str) -> list[alt.Tooltip]:
    """Same words, same order in every chart."""
    words_and_formats = {
        "world_size": ("{GPUs}", "d"),
        "layout_name": ("layout", None),
        "advised_layout_name": ("advised", None),
        "series": ("value is", None),
        "outcome": ("outcome", None),
        "tokens_per_s": ("tokens/s", ",.4~s"),
        "tokens_per_s_low": ("{interval} from", ",.4~s"),
        "tokens_per_s_high": ("{interval} to", ",.4~s"),
        "tokens_per_s_per_gpu": ("tokens/s per {GPU}", ",.4~s"),
        "efficiency": ("share of ideal", ".1%"),
        "share_of_best": ("of the fastest", ".1%"),
        "mfu": ("MFU", ".1%"),
        "runner_up_layout_name": ("runner-up", None),
        "memory": ("peak GiB", ".3~f"),
        "elasticity": ("elasticity", ".2f"),
        "tried": ("layouts tried", "d"),
        "failed": ("of these failed", "d"),
        "text": ("best of the cell", None),
        "status": ("outcome", None),
        "model": ("model", None),
        "cluster": ("cluster", None),
        "kind": ("collective", None),
        "nodes": ("nodes", "d"),
        "ranks": ("ranks of a group", "d"),
        "at_once": ("groups at once", "d"),
        "message_bytes": ("bytes", ",d"),
        "rate": ("GB/s", ".4~g"),
        "precision": ("precision", None),
        "m": ("m", "d"),
        "n": ("n", "d"),
        "k": ("k", "d"),
        "flop_per_s": ("FLOP/s", ".4~s"),
        "probes": ("probes", "d"),
        "stack_fingerprint": ("software stack", None),
    }
    tips = []
    for field in fields:
        title, shown = words_and_formats[field]
        kind = "N" if shown is None else "Q"
        options: dict[str, Any] = {} if shown is None else {"format": shown}
        tips.append(alt.Tooltip(f"{field}:{kind}", title=title, **options))
    return tips
