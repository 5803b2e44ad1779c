"""The answer: which layouts to use, what the last step returned, and what a reader must know."""

from collections.abc import Mapping
from itertools import groupby

from scaling.report.sections.leads import PREDICTED_TIE
from scaling.report.tables import Record, Tables
from scaling.report.text.numbers import interval, listed, percent
from scaling.report.text.words import counted

Span = tuple[str, bool]  # text, and whether it is strong

STARVED_SHARE = 1.2  # above it the smallest size is a poor yardstick


def advice_spans(tables: Tables, words: Mapping[str, str]) -> list[Span]:
    """`tp 1, pp 2 from 8 to 16 GPUs, then ...`; empty where nothing ran."""
    advised = sorted((row["world_size"], row["layout_name"]) for row in tables["advised"])
    spans: list[Span] = []
    for layout, group in groupby(advised, key=lambda one: str(one[1])):
        sizes = [size for size, _ in group]
        first, last = sizes[0], sizes[-1]
        where = (
            f" on {counted(first, words)}"
            if first == last
            else f" from {first} to {counted(last, words)}"
        )
        spans += [(", then " if spans else "", False), (layout, True), (where, False)]
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
        ran = "is predicted" if predicted else "ran"
        spans.append((f"Only {counted(only, words)} {ran}, so a return cannot be stated.", False))
    return spans


def _step_sentence(step: Record, words: Mapping[str, str]) -> str:
    share = interval(step["share"], step["share_low"], step["share_high"])
    where = f"From {step['from_world_size']} to {counted(step['to_world_size'], words)}"
    foretold = step["series"] == "predicted"
    returned = f"each added {words['GPU']} {'would return' if foretold else 'returned'} {share}"
    if step["share_high"] is not None and step["share_high"] < 0:
        falls = "would fall" if foretold else "falls"
        return f"{where} throughput {falls}: {returned} of its share."
    return f"{where} {returned} of its share."


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
        every = len(ties) == len(best) > 1
        which = "At every size" if every else f"At {listed(ties)} {size}"
        said.append(
            f"{which} the intervals of the two fastest layouts overlap: a tie. "
            "Where layouts tie, the one that needs fewer changes is named"
            + (
                f", if it is predicted within {percent(PREDICTED_TIE)} of the fastest."
                if any(row["series"] == "predicted" for row in best)
                else "."
            )
        )
    sizes = [row["world_size"] for row in tables["outcomes"] if row["outcome"] is not None]
    if best and sizes and min(sizes) < best[0]["world_size"]:
        said.append(f"Below {counted(best[0]['world_size'], words)} no layout tried ran.")
    if any(row["share"] > STARVED_SHARE for row in tables["returns"]):
        said.append(
            "Shares well above 1 mean that the smallest size that ran is a poor yardstick: "
            "it is starved."
        )
    beyond_peak = [row for row in best if (row["mfu"] or 0) > 1]
    if beyond_peak:
        top = max(beyond_peak, key=lambda row: float(row["mfu"]))
        said.append(
            f"MFU is {percent(top['mfu'])} on {counted(top['world_size'], words)}: above 100 % the "
            "peak, the FLOP count or the step time of the row is in doubt."
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
    if done["predicted"]:
        parts = [f"{done['points']} points are predicted", "none was to be measured"]
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
