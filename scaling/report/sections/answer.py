"""What stands around a selection's answer: predictions beyond it, its note and its key figures."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from scaling.analyse.ties import NOISE_FLOOR, PREDICTED_FLOOR, UNSTATED_FLOOR
from scaling.errors import counted
from scaling.report.tables import Record, Tables
from scaling.report.text import THIN, UNKNOWN, amount, gib, interval, listed, percent, significant

STARVED_RETURN = 1.2  # a higher return says that the smaller size is a poor yardstick

Figure = tuple[str, str, str]  # name, value, what it is


def batch_words(tables: Tables) -> str:
    """What is kept equal while GPUs are added."""
    setting = tables["settings"][0]
    batch = f"{setting['kept_batch_size']} sequences of {setting['seq_length']} tokens"
    if setting["kept_choices"]:
        batch += f" with {setting['kept_choices']}"
    if setting["study_kind"] == "strong":
        return f"Strong scaling: {batch} a step at every number of {tables.words['GPUs']}"
    return f"Weak scaling: {batch} a step for each {tables.words['GPU']}"


def why_nothing_ran(tables: Tables) -> str:
    """Why there is no answer."""
    progress = tables["progress"][0]
    if not progress["points"]:
        return f"Nothing can run: {_combinations(progress['refusals'])} refused."
    if progress["predicted"] and not progress["failed"]:
        fits = "fits" if tables["contenders"] else "can be predicted"
        return f"Predicted: no layout {fits}, at none of the sizes."
    if not progress["failed"]:
        return f"No point has a result yet: {progress['waiting']} wait."
    rest = f"; {progress['waiting']} have no result yet" if progress["waiting"] else ""
    ended: Counter[str] = Counter()
    for row in tables["outcomes"]:
        if row["outcome"] is not None:
            ended[row["outcome"]] += row["points"]
    how = ", ".join(f"{number} {outcome}" for outcome, number in ended.most_common())
    failed = f"{progress['failed']} of {counted(progress['points'], 'point')} failed"
    return f"No layout ran: {failed} ({how}){rest}."


def predicted_beyond(tables: Tables, *, ran: bool = True) -> str:
    """What is predicted at sizes where nothing ran, from the tables of predictions.

    `ran`: something ran at smaller sizes.
    """
    sizes = {row["world_size"] for row in tables["best"]}
    advised = sorted(
        (row["world_size"], str(row["layout_name"]))
        for row in tables["advised"]
        if row["world_size"] in sizes
    )
    if not advised:
        return ""
    stretches = []
    for layout, group in groupby(advised, key=lambda pair: pair[1]):
        on = [size for size, _ in group]
        last = tables.gpus(on[-1])
        stretches.append(
            f"{layout} on {last}" if len(on) == 1 else f"{layout} from {on[0]} to {last}"
        )
    where = "beyond the sizes that ran" if ran else "where nothing ran"
    sentence = f"Predicted {where}: {', then '.join(stretches)}."
    if tables["returns"]:
        step = tables["returns"][-1]
        more = step["to_world_size"] / step["from_world_size"] - 1
        low, high = (
            None if end is None else 1 + more * end
            for end in (step["step_return_low"], step["step_return_high"])
        )
        faster = interval(1 + more * step["step_return"], low, high)
        to = tables.gpus(step["to_world_size"])
        sentence += f" {to} would train {faster} times as fast as {step['from_world_size']}."
    return sentence


def has_full_steps(everything: Tables, series: str) -> bool:
    """Whether sentences stand on extended steps, among them full ones of layouts without short."""
    rates: dict[str, set[tuple[int, str, float]]] = {"measured": set(), "extended": set()}
    for row in everything["contenders"]:
        if row["series"] in rates and row["tokens_per_s"] is not None:
            rates[row["series"]].add((row["world_size"], row["layout_name"], row["tokens_per_s"]))
    return series == "extended" and not rates["measured"].isdisjoint(rates["extended"])


def note(tables: Tables, *, full_steps: bool = False) -> str:
    """What a reader of the answer must know, in small type; `full_steps` is `has_full_steps`."""
    setting, best = tables["settings"][0], tables["best"]
    sentences = []
    if tables.series == "published" and best:
        sentences.append("Published by others, not measured here.")
    if setting["vendor"] == "cpu":
        sentences.append(
            "All ranks share the cores of one machine: the curves are about that machine, "
            "not about GPUs."
        )
    if full_steps:
        sentences.append(
            "Layouts that ran full steps only (short ones would have saved them little, or were "
            "not on a line) are ranked by these."
        )
    sentences += [_tie_rule(tables), _left_out(tables), _other_losses(tables)]
    if tables.series == "predicted":
        sentences.append(
            "Nothing ran that these predictions could be compared with; "
            "docs/prediction.md has the predictor's errors on published rows."
        )
    tried = [row for row in tables["outcomes"] if row["outcome"] is not None]
    # what ran there in another series is not in `best`
    ran = {row["world_size"] for row in tried if row["outcome"] == "ok"}
    failed = sorted({row["world_size"] for row in tried} - ran)
    if best and failed:
        sentences.append(f"At {_gpus(tables, failed)} no layout tried ran.")
    if any(
        row["step_return"] > STARVED_RETURN and (row["step_return_low"] or STARVED_RETURN) > 1
        for row in tables["returns"]
    ):
        sentences.append(
            "A return well above 1 says that the smaller size is a poor yardstick: it may be "
            "starved of memory, or lack a layout that the larger one has."
        )
    above_peak = [row for row in tables["contenders"] if (row["mfu"] or 0) > 1]
    if above_peak:
        top = max(above_peak, key=lambda row: float(row["mfu"]))
        sentences.append(
            f"MFU is {percent(top['mfu'])} on {tables.gpus(top['world_size'])}: above 100{THIN}% "
            "the peak, the FLOP count or the step time of the row is in doubt."
        )
    stacks = {row["stack_fingerprint"] for row in best}
    if len(stacks) > 1:
        sentences.append(
            f"The fastest layouts come from {len(stacks)} software stacks, so steps between "
            "them also compare software."
        )
    other = [
        row["world_size"]
        for row in best
        if row["runner_up_layout_name"] is not None
        and row["runner_up_stack_fingerprint"] != row["stack_fingerprint"]
    ]
    if other:
        sentences.append(
            f"At {_gpus(tables, other)} the two fastest layouts ran in different software, so "
            "their order compares software too."
        )
    waiting = tables["progress"][0]["waiting"]
    if best and waiting:
        which = "point has" if waiting == 1 else "points have"
        sentences.append(f"{waiting} {which} no result yet, so the fastest may change.")
    return " ".join(filter(None, sentences))


def _gpus(tables: Tables, sizes: Sequence[int]) -> str:
    """`1 rank`, `8 and 16 GPUs`."""
    return listed([*map(str, sizes[:-1]), tables.gpus(sizes[-1])])


def _other_losses(tables: Tables) -> str:
    """Which layouts may train something else, the advised ones by their sizes."""
    marked = {(row["world_size"], row["layout"]) for row in tables["losses"]}
    if tables.series == "predicted" or not marked:
        return ""
    advised = {
        row["world_size"]
        for row in tables["decision"]
        if row["advised"] and (row["world_size"], row["layout"]) in marked
    }
    which = "of a layout"
    if advised:
        which = f"of the advised layout at {_gpus(tables, sorted(advised))}"
    elif len(marked) > 1:
        which = f"of {len(marked)} layouts"
    return f"The losses {which} differ from those of the same training: check before you use it."


def _left_out(tables: Tables) -> str:
    """How many layouts the decision leaves out because they ran, or fit, at no size."""
    number = sum(row["never_ran"] for row in tables["noise"])
    if not number:
        return ""
    more, fit = ("more layout", "fits") if number == 1 else ("more layouts", "fit")
    return f"{number} {more} {fit if tables.series == 'predicted' else 'ran'} at no size."


def _tie_rule(tables: Tables) -> str:
    """The lead that counts as a tie, the sizes where the two fastest tie, and what is advised.

    Where no two layouts ran at one size it says so, because the fastest had no rival.
    """
    best = [row for row in tables["best"] if row["runner_up_layout_name"] is not None]
    if not best:
        did = "do two layouts fit" if tables.series == "predicted" else "did two layouts run"
        return f"At no size {did}, so the fastest is compared with none." if tables["best"] else ""
    if tables.series == "predicted":
        own = [row["predicted_own_sigma"] for row in best]
        floor = NOISE_FLOOR if all(own) else PREDICTED_FLOOR
        rules = [
            f"below {percent(floor)} counts as a tie between predictions, whatever their errors"
        ]
    else:
        ran = [row for row in tables["contenders"] if row["outcome"] == "ok"]
        stated = [_noise_is_known(row) for row in ran]
        known = "between runs, however narrow their intervals"
        unknown = "between rows that state no noise"
        rules = [
            f"below {percent(floor)} counts as a tie {rows}"
            for floor, rows, there in (
                (NOISE_FLOOR, known, any(stated)),
                (UNSTATED_FLOOR, unknown, not all(stated)),
            )
            if there
        ]
    rule = f"A lead {', one '.join(rules)}."
    ties = [row["world_size"] for row in best if row["tied"]]
    if not ties:
        return rule
    where = f"At {_gpus(tables, ties)}"
    if len(ties) == len(tables["best"]) > 1:
        where = "At every size"
    near = ""
    if tables.series == "predicted":
        near = f", if it is predicted within {percent(PREDICTED_FLOOR)} of the fastest"
    return (
        f"{rule} {where} the two fastest layouts tie: they are not told apart. Where layouts tie, "
        f"the one that needs fewer changes is advised{near}."
    )


def _noise_is_known(row: Record) -> bool:
    """Whether a rate has an interval or repeats, as in ranking.sql."""
    low, high = row["tokens_per_s_low"], row["tokens_per_s_high"]
    return row["ok_runs"] > 1 or (low is not None and high > low)


def statistics_title(tables: Tables) -> str:
    """How many points there are and how they ended."""
    progress = tables["progress"][0]
    tried = progress["ok"] + progress["failed"]
    parts = []
    if tried or not progress["predicted"]:
        points = "points" if tables.series != "published" else "published points"
        parts.append(
            f"{progress['ok']} of {progress['points'] - progress['predicted']} {points} ran"
        )
    if progress["failed"]:
        parts.append(f"{progress['failed']} failed")
    if progress["predicted"]:
        more = "more " if tried else ""
        parts.append(f"{progress['predicted']} {more}points are predicted")
        parts += [] if tried else ["none is measured"]
    if waiting := progress["waiting"]:
        parts.append(f"{waiting} {'has' if waiting == 1 else 'have'} no result yet")
    if progress["refusals"]:
        parts.append(f"{_combinations(progress['refusals'])} refused")
    if progress["skipped"]:
        parts.append(f"{_combinations(progress['skipped'])} skipped by the guided sweep")
    return listed(parts)


def _combinations(number: int) -> str:
    """`1 combination was`, `5 combinations were`."""
    return "1 combination was" if number == 1 else f"{number} combinations were"


def figures(tables: Tables) -> list[Figure]:
    """The key figures under the answer, without those that are not known."""
    progress, best = tables["progress"][0], tables["best"]
    if not best:
        return [_points_figure(progress)]
    last = best[-1]
    taken = advised_memory(tables, last)
    at_last = f"at {tables.gpus(last['world_size'])}"
    memory, rate = gib(taken), f"{amount(last['tokens_per_s'])} tokens/s"
    if len(best) > 1:
        rate += f", {percent(last['efficiency'])} of ideal"
    predicted = last["series"] == "predicted"
    largest = "Largest size predicted" if predicted else "Largest size run"
    slowest = last["slowest_share"] if last["runner_up_layout_name"] else None  # not of repeats
    spread = UNKNOWN if slowest is None else f"×{significant(1 / slowest)}"
    every = [
        _utilisation_figure(tables),
        (largest, tables.gpus(last["world_size"]), rate),
        ("Choice of layout", spread, f"fastest over slowest {at_last}"),
        _points_figure(progress),
        ("Memory", memory, f"per {tables.words['GPU']}, layout advised {at_last}"),
        _noise_figure(tables),
    ]
    return [figure for figure in every if figure[1] != UNKNOWN]


def advised_memory(tables: Tables, best: Record) -> float | None:
    """Bytes of the fullest rank of the layout advised at a size; predicted where its rate is."""
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


def _points_figure(progress: Record) -> Figure:
    ended = {
        "failed": "failed", "waiting": "waiting", "refusals": "refused", "skipped": "skipped",
    }  # fmt: skip
    parts = {key: f"{progress[key]} {ending}" for key, ending in ended.items() if progress[key]}
    if not progress["predicted"]:
        ran = f"{progress['ok']} / {progress['points']}"
        return ("Points that ran", ran, ", ".join(parts.values()) or "none failed")
    tried = progress["ok"] + progress["failed"]
    others = f"{progress['ok']} of {tried} others ran" if progress["ok"] else ""
    what = ", ".join(filter(None, ["only predicted", parts.get("refusals"), others]))
    return ("Points", str(progress["predicted"]), what)


def _utilisation_figure(tables: Tables) -> Figure:
    for column, name in (
        ("mfu", "Highest MFU"),
        ("model_flop_per_s_per_gpu", f"Highest rate per {tables.words['GPU']}"),
    ):
        rows = [row for row in tables["best"] if row[column] is not None]
        if rows:
            top = max(rows, key=lambda row: float(row[column]))
            rate = percent(top["mfu"], 1) if column == "mfu" else amount(top[column], "FLOP/s")
            where = f"of the fastest layout, at {tables.gpus(top['world_size'])}"
            return (name, rate, where)
    return ("Highest MFU", UNKNOWN, "the model's shape is not known")


def _noise_figure(tables: Tables) -> Figure:
    noise = tables["noise"][0] if tables["noise"] else None
    if noise and noise["repeat_half_spread"] is not None:
        spread, layouts = noise["repeat_half_spread"], noise["repeated_layouts"]
        what = f"between repeats of {layouts} layout{'s' if layouts > 1 else ''}"
        return ("Noise", f"±{percent(spread, 1 if spread >= 0.001 else 2)}", what)
    if not noise or noise["interval_half_width"] is None:
        return ("Noise", UNKNOWN, "no interval was measured")
    if noise["series"] == "predicted":
        spread = percent(noise["interval_half_width"], 0)
        return ("Uncertainty", f"±{spread}", f"80{THIN}% interval of the predictions")
    is_extended = noise["series"] == "extended"
    level = f"80{THIN}% interval of an extended step"
    if not is_extended:
        level = f"95{THIN}% interval of one run"
    return ("Noise", f"±{percent(noise['interval_half_width'], 1)}", level)
