"""The six key figures under the answer."""

from collections.abc import Mapping

from scaling.report.tables import Record, Tables
from scaling.report.text.numbers import UNKNOWN, amount, gib, percent, significant
from scaling.report.text.words import counted


def figures(tables: Tables, words: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Key figures: name, value, what it is."""
    done = tables["progress"][0]
    ran = (
        "Points that ran",
        f"{done['ok']} / {done['points']}",
        _fates(done, "failed", "waiting", "refusals") or "none failed",
    )
    if done["predicted"]:
        tried = f"{done['ok']} of {done['ok'] + done['failed']} others ran" if done["ok"] else ""
        parts = ["only predicted", _fates(done, "refusals"), tried]
        ran = ("Points", str(done["predicted"]), ", ".join(filter(None, parts)))
    best = tables["best"]
    if not best:
        return [ran]
    last = best[-1]
    at_last = f"at {counted(last['world_size'], words)}"
    kept = f"{amount(last['tokens_per_s'])} tokens/s"
    if len(best) > 1:
        kept += f", {percent(last['efficiency'])} of ideal"
    foretold = last["series"] == "predicted"
    largest = "Largest size predicted" if foretold else "Largest size run"
    rivals = last["runner_up_layout_name"] is not None
    spread = f"×{significant(1 / last['slowest_share'])}" if rivals else UNKNOWN
    figures = [
        _utilisation_figure(best, words),
        (largest, counted(last["world_size"], words), kept),
        ("Choice of layout", spread, f"fastest over slowest {at_last}"),
        ran,
        ("Memory", gib(_memory(tables, last)), f"per {words['GPU']}, layout advised {at_last}"),
        _noise_figure(tables),
        *_tail_figure(tables, words),
    ]
    return [figure for figure in figures if figure[1] != UNKNOWN]


def advised_memory(tables: Tables, size: int, words: Mapping[str, str]) -> str:
    """What the layout advised at a size needs of the memory, a title."""
    best = next((row for row in tables["best"] if row["world_size"] == size), None)
    memory = _memory(tables, best) if best else None
    if memory is None:
        return "What each layout needs of the memory"
    capacity = tables["settings"][0]["gpu_memory_bytes"]
    of = f" of {gib(capacity)}" if capacity else ""
    which = f"At {counted(size, words)} the layout advised"
    return f"{which} needs {gib(memory)}{of} per {words['GPU']}"


def _memory(tables: Tables, best: Record) -> float | None:
    """Bytes of the largest rank of the layout advised at a size, of the series of its rates."""
    column = "predicted_memory_bytes" if best["series"] == "predicted" else "peak_memory_bytes"
    advised = (best["world_size"], best["advised_row_name"])
    return next(
        (
            row[column]
            for row in tables["contenders"]
            if (row["world_size"], row["layout_name"]) == advised
        ),
        None,
    )


def _fates(done: Record, *fates: str) -> str:
    """What became of points, without those of which there are none: `3 failed, 2 refused`."""
    words = {"failed": "failed", "waiting": "to come", "refusals": "refused"}
    return ", ".join(f"{done[fate]} {words[fate]}" for fate in fates if done[fate])


def _tail_figure(tables: Tables, words: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """How much longer one step in twenty takes, at the largest size that kept its steps."""
    tails = tables["tails"]
    if not tails:
        return []
    last = max(tails, key=lambda row: int(row["world_size"]))
    longer = last["step_time_p95_s"] / last["step_time_s"] - 1
    where = f"or more over the median in one step of 20, {counted(last['world_size'], words)}"
    return [("Slow steps", f"+{percent(longer, 1)}", where)]


def _utilisation_figure(best: list[Record], words: Mapping[str, str]) -> tuple[str, str, str]:
    def where(row: Record) -> str:
        return f"of the fastest layout, at {counted(row['world_size'], words)}"

    with_peak = [row for row in best if row["mfu"] is not None]
    if with_peak:
        top = max(with_peak, key=lambda row: float(row["mfu"]))
        return ("Highest MFU", percent(top["mfu"], 1), where(top))
    counted_rows = [row for row in best if row["model_flop_per_s_per_gpu"] is not None]
    if not counted_rows:
        return ("Highest MFU", "–", "the model's shape is not known")
    top = max(counted_rows, key=lambda row: float(row["model_flop_per_s_per_gpu"]))
    rate = amount(top["model_flop_per_s_per_gpu"], "FLOP/s")
    return (f"Highest rate per {words['GPU']}", rate, where(top))


def _noise_figure(tables: Tables) -> tuple[str, str, str]:
    noise = tables["noise"][0] if tables["noise"] else None
    if noise and noise["repeat_half_spread"] is not None:
        spread, layouts = noise["repeat_half_spread"], noise["repeated_layouts"]
        which = f"between repeats of {layouts} layout{'s' if layouts > 1 else ''}"
        return ("Noise", f"±{percent(spread, 1 if spread >= 0.001 else 2)}", which)
    if noise and noise["interval_half_width"] is not None and noise["series"] == "predicted":
        spread = percent(noise["interval_half_width"], 0)
        return ("Uncertainty", f"±{spread}", "80 % interval of the predictions")
    if noise and noise["interval_half_width"] is not None:
        return ("Noise", f"±{percent(noise['interval_half_width'], 1)}", "95 % interval of one run")
    return ("Noise", "–", "no interval was measured")
