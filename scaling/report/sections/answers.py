"""What a reader of the answer must know, and what became of the points."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from scaling.analyse.ties import NOISE_FLOOR, PREDICTED_FLOOR, UNSTATED_FLOOR
from scaling.report.tables import Record, Tables
from scaling.report.text.numbers import interval, listed, percent
from scaling.report.text.words import counted

STARVED_RETURN = 1.2  # above it the smaller size is no yardstick: it is starved


def nothing_ran(tables: Tables) -> str:
    """Why there is no answer."""
    done = tables["progress"][0]
    if not done["points"]:
        return f"Nothing can run: {combinations(done['refusals'])} refused."
    if not done["failed"]:
        return f"Nothing has run yet: {done['waiting']} points wait."
    rest = f"; {done['waiting']} have not run yet" if done["waiting"] else ""
    return f"No layout ran: {done['failed']} of {done['points']} points failed{rest}."


def note(tables: Tables, kind: str, words: Mapping[str, str]) -> str:
    """What a reader of the answer must know, in small type."""
    setting, best = tables["settings"][0], tables["best"]
    sentences = []
    if kind == "published" and best:
        sentences.append("Published by others, not measured here.")
    if setting["vendor"] == "cpu":
        sentences.append(
            "Ranks share the cores of one machine: the curves tell about that machine, "
            "not about GPUs."
        )
    sentences += [_tie_rule(best, kind, words)] if best else []
    if kind == "predicted":
        sentences.append(
            "No row that ran stands against these predictions; docs/prediction_accuracy.md has "
            "their errors on published rows."
        )
    sizes = [row["world_size"] for row in tables["outcomes"] if row["outcome"] is not None]
    if best and sizes and min(sizes) < best[0]["world_size"]:
        sentences.append(f"Below {counted(best[0]['world_size'], words)} no layout tried ran.")
    if any(
        row["step_return"] > STARVED_RETURN and (row["step_return_low"] or STARVED_RETURN) > 1
        for row in tables["returns"]
    ):
        sentences.append(
            "Returns well above 1 mean that the size before is a poor yardstick: it is starved."
        )
    beyond_peak = [row for row in tables["contenders"] if (row["mfu"] or 0) > 1]
    if beyond_peak:
        top = max(beyond_peak, key=lambda row: float(row["mfu"]))
        sentences.append(
            f"MFU is {percent(top['mfu'])} on {counted(top['world_size'], words)}: above 100 % the "
            "peak, the FLOP count or the step time of the row is in doubt."
        )
    stacks = {row["stack_fingerprint"] for row in best}
    if len(stacks) > 1:
        sentences.append(
            f"The fastest layouts come from {len(stacks)} software stacks, so steps between "
            "them also compare software."
        )
    waiting = tables["progress"][0]["waiting"]
    if best and waiting:
        which = "point has" if waiting == 1 else "points have"
        sentences.append(f"{waiting} {which} not run yet, so the fastest may change.")
    return " ".join(sentences)


def _tie_rule(best: Sequence[Record], kind: str, words: Mapping[str, str]) -> str:
    """Where the two fastest tie, and from which lead on one is called faster."""
    ties = [row["world_size"] for row in best if row["tied"]]
    floor = UNSTATED_FLOOR
    reason = "rows without an interval"
    if kind == "predicted":
        own = [row["predicted_own_sigma"] for row in best]
        floor = NOISE_FLOOR if all(own) else PREDICTED_FLOOR
        reason = "predictions, whatever their own errors"
    elif all(row["tokens_per_s_low"] is not None for row in best):
        floor, reason = NOISE_FLOOR, "runs, whatever the interval of one"
    rule = f"Leads below {percent(floor)} count for nothing in {reason}"
    if not ties:
        return f"{rule}."
    size = words["GPU"] if ties == [1] else words["GPUs"]
    every = len(ties) == len(best) > 1
    which = "at every size" if every else f"at {listed([str(one) for one in ties])} {size}"
    near = ""
    if kind == "predicted":
        near = f", if it is predicted within {percent(PREDICTED_FLOOR)} of the fastest"
    return (
        f"{rule}; {which} the two fastest layouts are not told apart: a tie. Where layouts tie, "
        f"the one that needs fewer changes is advised{near}."
    )


def statistics_title(tables: Tables, kind: str) -> str:
    """How many points there are and what became of them."""
    done = tables["progress"][0]
    tried = done["ok"] + done["failed"]
    parts = []
    if tried or not done["predicted"]:
        of = "points" if kind != "published" else "published points"
        parts.append(f"{done['ok']} of {done['points'] - done['predicted']} {of} ran")
    if done["failed"]:
        parts.append(f"{done['failed']} failed")
    if done["predicted"]:
        more = "more " if tried else ""
        parts.append(f"{done['predicted']} {more}points are predicted")
        parts += [] if tried else ["none is measured"]
    if done["waiting"]:
        parts.append(f"{done['waiting']} {'has' if done['waiting'] == 1 else 'have'} not run yet")
    if done["refusals"]:
        parts.append(f"{combinations(done['refusals'])} refused")
    return listed(parts)


def combinations(number: int) -> str:
    """`1 combination was`, `5 combinations were`."""
    return "1 combination was" if number == 1 else f"{number} combinations were"


def beyond(tables: Tables, words: Mapping[str, str]) -> str:
    """What is predicted at sizes where nothing ran, from the predicted rows of those sizes."""
    sizes = {row["world_size"] for row in tables["best"]}
    advised = sorted(
        (row["world_size"], str(row["layout_name"]))
        for row in tables["advised"]
        if row["world_size"] in sizes
    )
    if not advised:
        return ""
    stretches = []
    for layout, group in groupby(advised, key=lambda one: one[1]):
        on = [size for size, _ in group]
        last = counted(on[-1], words)
        stretches.append(
            f"{layout} on {last}" if len(on) == 1 else f"{layout} from {on[0]} to {last}"
        )
    sentence = f"Predicted beyond, not measured: {', then '.join(stretches)}."
    if tables["returns"]:
        step = tables["returns"][-1]
        worth = interval(step["step_return"], step["step_return_low"], step["step_return_high"])
        sentence += f" The step to {counted(step['to_world_size'], words)} would return {worth}."
    return sentence
