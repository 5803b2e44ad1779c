"""The answer of a selection as a purchase: how many GPUs, which layout, days, cost; and its health.

The page's script makes the same choice when the reader changes tokens, price or deadline
(reports/page/page.js); what it needs of each size is one `option`.
"""

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scaling.analyse.decision import LEAST_FIT
from scaling.errors import counted
from scaling.layout.names import exact
from scaling.report.tables import Record, Tables
from scaling.report.text import (
    GLUE,
    SURE,
    THIN,
    amount,
    at_level,
    digits,
    duration,
    gib,
    glued,
    listed,
    money,
    percent,
    significant,
    step_words,
)

TOKENS_PER_PARAMETER = 20  # of a run, unless the reader says otherwise (Hoffmann et al.)
DEFAULT_TOKENS = 1e12  # where the model's parameters are not known
BUSY = (0.05, 0.2)  # share of the processors that others took: amber, red (steps a quarter longer)
LOADED = (1.25, 2.0)  # the same for the load over own threads, of rows without that share
SLOWED = 0.1  # share of the time
NOISY = 0.05  # between repeats; published ones differ by 0.1 to 1.4 %, those of single steps by 5 %
STOPPED = 2.0  # of a step, over the median; the longest of 13 rows of an H100 is 1.23
_MOST_HOSTS = 5  # named in one sentence
_VERBS = {
    "measured": "Use", "extended": "Use", "published": "Published: use",
    "predicted": "Predicted: use",
}  # fmt: skip
_STANDS_ON = {
    "measured": "Measured here", "extended": "Measured here in short steps",
    "published": "Published by others, not measured here", "predicted": "Predicted, not measured",
}  # fmt: skip

Option = dict[str, Any]
Item = tuple[str, str]  # "good", "warn" or "bad", and a sentence


def options(tables: Tables) -> list[Option]:
    """One option per size at which a layout can be advised, in rising order.

    `verb`: starts the headline; a red item of the health line replaces it.   `hours`, `gpu_hours`:
    per token, `low` and `high` the interval of `hours`.   `close`: why it is too close to call, or
    empty.   `returns`: what the steps to and from this size gain.   `health`: see `health`.
    """
    made = []
    for row in tables["sizes"]:
        items = health(tables, row)
        red = next((words for state, words in items if state == "bad"), None)
        made.append(
            {
                "size": row["world_size"],
                "what": glued(f"{tables.gpus(row['world_size'])} with {row['layout_name']}"),
                "exact": exact(row),
                "source": row["source"],
                "verb": _VERBS[row["source"]],
                "undecided": red and f"Not decided: {red[:1].lower()}{red[1:]}",
                "hours": row["hours_per_token"],
                "low": row["hours_per_token_low"],
                "high": row["hours_per_token_high"],
                "gpu_hours": row["gpu_hours_per_token"],
                "step": row["tokens_per_step"],
                "level": round(100 * row["level"]),
                "close": too_close(tables, row),
                "returns": _returns(tables, row["world_size"]),
                "health": items,
            }
        )
    return made


def start(tables: Tables) -> int | None:
    """The size that the page opens with: the knee, or the largest that ran up to it."""
    sizes = [row["world_size"] for row in tables["sizes"]]
    ran = [row["world_size"] for row in tables["sizes"] if row["source"] != "predicted"]
    knee = next((row["knee_world_size"] for row in tables["knees"]), None)
    return max((one for one in ran or sizes if knee is None or one <= knee), default=None) or (
        min(ran or sizes, default=None)
    )


def choose(of: Sequence[Option], opening: int) -> tuple[Option, Option | None, Option | None]:
    """The option of the size `opening`, one cheaper and one faster, as page.js chooses them."""
    use = next(one for one in of if one["size"] == opening)
    cheaper = [one for one in of if one["gpu_hours"] < use["gpu_hours"]]
    faster = [one for one in of if one["hours"] < use["hours"]]
    return use, _least(cheaper, "hours"), _least(faster, "gpu_hours")


def _least(of: Sequence[Option], key: str) -> Option | None:
    return min(of, key=lambda one: float(one[key])) if of else None


def bill(option: Option, tokens: float, price: float | None, words: Mapping[str, str]) -> str:
    """Time and cost of a run: `2.80 days, $11 400`."""
    took = duration(option["hours"] * tokens)
    return f"{took}, {glued(money(option['gpu_hours'] * tokens, price, words['GPU']))}"


def offer(option: Option, tokens: float, price: float | None, words: Mapping[str, str]) -> str:
    """An alternative: `32 GPUs: 5.50 days, $11 200 (5.30–5.70 days, 95 % interval), measured`."""
    low, high = _ends(option, tokens)
    interval = f"({low}–{high}, {option['level']}{THIN}% interval)"
    return f"{option['what']}: {bill(option, tokens, price, words)} {interval}, {option['source']}"


def headline(option: Option, tokens: float, price: float | None, words: Mapping[str, str]) -> str:
    """The answer, such as `Use 64 GPUs with ZeRO-3: 2.80 days, $11 400 for 135 G tokens`."""
    if option["undecided"]:
        return f"{option['undecided']}."
    paid = bill(option, tokens, price, words)
    return f"{option['verb']} {option['what']}: {paid} for {amount(tokens)} tokens."


def between(option: Option, tokens: float, price: float | None, words: Mapping[str, str]) -> str:
    """The interval of time and cost, such as `Between 2.70 and 2.90 days, $11 k and $12 k (...)`.

    If the headline decides nothing, first what the runs say all the same.
    """
    said = f"These runs say {option['what']}: {bill(option, tokens, price, words)}. "
    low, high = _ends(option, tokens)
    per_hour = option["gpu_hours"] / option["hours"] * tokens
    least, most = (money(option[end] * per_hour, price, words["GPU"]) for end in ("low", "high"))
    costs = f"{least.split(' ')[0]} and {glued(most)}"
    interval = f"Between {low} and {high}, {costs} ({option['level']}{THIN}% interval)."
    return said + interval if option["undecided"] else interval


def _ends(option: Option, tokens: float) -> tuple[str, str]:
    """The interval of the time in the unit of its middle: `2.70`, `2.90 days`."""
    low, high = (
        duration(option[end] * tokens, option["hours"] * tokens) for end in ("low", "high")
    )
    return low.split(GLUE)[0], high


def too_close(tables: Tables, size: Record) -> str:
    """Which layouts may be the best, and what taking the advised one costs; empty if decided."""
    if size["close_layouts"] < 2:
        return ""
    rows = [
        row
        for row in tables["estimates"]
        if row["world_size"] == size["world_size"] and row["close"]
    ]
    likely = sorted(rows, key=lambda row: -float(row["p_best"]))[:3]
    named = [f"{row['layout_name']} ({percent(row['p_best'])})" for row in likely]
    more = size["close_layouts"] - len(named)
    named += [f"{more} more"] if more > 0 else []
    loss = percent(size["expected_loss"], 1)
    said = f"Too close to call: the best is {' or '.join(named)}. "
    said += f"Whichever it is, the advised layout is expected to be {loss} slower."
    if not size["next_points"]:
        return said
    points = counted(size["next_points"], "point")
    hours = f"{amount(size['next_gpu_hours'])} {tables.words['GPU']}-hours"
    return f"{said} What to measure next: {points}, {hours}."


def _returns(tables: Tables, size: int) -> str:
    """The gains of the steps to and from a size, and whether it is the largest that was tried."""
    steps = [
        f"{step['from_world_size']} to {step['to_world_size']} trains {step_words(step)}"
        for step in tables["returns"]
        if size in (step["from_world_size"], step["to_world_size"])
    ]
    largest = size == max(int(row["world_size"]) for row in tables["estimates"])
    said = f"{'; '.join(steps)}. " if steps else ""
    return (said + "No larger size was tried." * largest).strip()


def health(tables: Tables, size: Record) -> list[Item]:
    """The evidence for and against the answer of a size, the worst first."""
    items = [
        *_others(tables, size["world_size"]),
        *_machine(tables, size),
        *_evidence(tables, size),
    ]
    order = ("bad", "warn", "good")
    return sorted(items, key=lambda item: order.index(item[0]))


def _machine(tables: Tables, size: Record) -> Iterator[Item]:
    """Throttling, slow hosts, disturbed runs and losses."""
    if (slowed := size["slowdown_share"] or 0) > SLOWED:
        gpus = tables.words["GPUs"]
        yield "bad", f"Heat or hardware slowed {gpus} in {percent(slowed)} of the time"
    if stopped := size["suspended_s"]:
        yield "warn", f"Its runs were suspended for {duration(stopped / 3600)}"
    if (longest := size["longest_step"] or 0) > STOPPED:
        told = f"A step took {significant(longest, 2)} times the median"
        yield "warn", f"{told}: a rank or its host was stopped"
    if slowest := sorted(tables["hosts"], key=lambda row: -float(row["effect"])):
        slow = [
            f"{row['host']} by {percent(row['effect'])} "
            f"{at_level(row['effect_low'], row['effect_high'], row['level'])}"
            for row in slowest[:_MOST_HOSTS]
        ]
        slow += [f"{len(slowest) - len(slow)} more"] if len(slowest) > len(slow) else []
        yield "warn", f"Slow: {listed(slow)}; the rates are corrected for it"
    yield from _disturbed(tables, size["world_size"])
    if size["losses_agree"] is False:
        yield "bad", "The losses of this layout differ from those of the same training"
    elif any(row["losses_agree"] is False for row in tables["estimates"]):
        yield "warn", "The losses of another layout differ from those of the training"
    if (size["mfu"] or 0) > 1:
        yield "bad", f"MFU is {percent(size['mfu'])}, more than the device can give"


def _disturbed(tables: Tables, size: int) -> Iterator[Item]:
    """The runs that do not count, or that disagree: those of the layouts to choose from by name."""
    others = 0
    for row in tables["estimates"]:
        if row["world_size"] != size or not (points := row["disturbed_points"]):
            continue
        name, named = row["layout_name"], ", ".join(points)
        if not (row["advised"] or row["close"]):
            others += 1
        elif len(points) > 1:
            yield "warn", f"Repeats of {name} disagree, and which is right is unknown: {named}"
        else:
            yield "warn", f"A run of {name} was disturbed and does not count: {named}"
    if others:
        yield "good", f"Disturbed runs of {counted(others, 'slower layout')} change nothing else"


def _others(tables: Tables, size: int) -> Iterator[Item]:
    """The most that others took of the processors, here and at the sizes one step away."""
    steps = [(step["from_world_size"], step["to_world_size"]) for step in tables["returns"]]
    near = {size}.union(*(step for step in steps if size in step))
    rows = [row for row in tables["estimates"] if row["world_size"] in near and row["candidate"]]
    if taken := [one for row in rows if (one := _taken(row))]:
        limits, _, at, words = max(taken)
        told = f"{words} at {tables.gpus(at)}"
        yield (
            ("good", "The machine was quiet"),
            ("warn", f"Something else ran on the machine: {told}"),
            ("bad", f"The machine was busy: {told}"),
        )[limits]


def _taken(row: Record) -> tuple[int, float, int, str] | None:
    """How many limits what others took exceeds, how much it is, the size, and words."""
    share, load = row["others_share"], row["load"]
    if share is not None:
        limits, much, told = BUSY, share, f"others took {percent(share)} of the processors"
    elif load:
        limits, much = LOADED, load
        told = f"load {significant(load, 2)} times the ranks' own threads before the start"
    else:
        return None
    return sum(much >= limit for limit in limits), much, row["world_size"], told


def _evidence(tables: Tables, size: Record) -> Iterator[Item]:
    """The basis of the answer: source, repeats, the chance to fit, points that are missing."""
    predicted = size["source"] == "predicted"
    stands = _STANDS_ON[size["source"]]
    if predicted:
        stands += f", {_calibration_words(size, datetime.datetime.now(datetime.UTC).date())}"
    elif size["started_at"]:
        stands += f", last on {size['started_at'][:10]}"
    yield "good" if size["source"] in ("measured", "extended") else "warn", stands
    noise = next(iter(tables["noise"]), None)
    if not predicted and noise and noise["sigma"] is not None:
        sigma = percent(noise["sigma"], 1)
        if noise["assumed"]:
            yield "warn", f"Every layout ran once; a noise of {sigma} is assumed"
        elif size["single_run"]:
            yield "warn", f"This layout ran once; repeats of others differ by {sigma}"
        elif noise["sigma"] > NOISY:
            told = "a run was disturbed, or the machine is noisy"
            yield "warn", f"Repeats differ by {sigma}: {told}"
        else:
            yield "good", f"Repeats differ by {sigma}"
    if size["candidates"] == 1:
        yield "warn", f"No other layout was compared at {tables.gpus(size['world_size'])}"
    if predicted and (fits := size["fits_probability"]) is not None:
        state = "good" if fits >= SURE else "warn" if fits >= LEAST_FIT else "bad"
        needed = gib(size["predicted_memory_bytes"])
        yield state, f"It fits with a chance of {percent(fits, predicted=True)} ({needed})"
    split = [row for row in tables["time_split"] if row["world_size"] == size["world_size"]]
    if any(row["host_bound"] for row in split):
        gpus = tables.words["GPUs"]
        yield "warn", f"The host's launches, not the {gpus}, bound a step, as predicted"
    waiting = tables["progress"][0]["waiting"] if tables["progress"] else 0
    if waiting and not predicted:
        have = "point has" if waiting == 1 else "points have"
        yield "warn", f"{waiting} {have} no result yet"


def _calibration_words(size: Record, today: datetime.date) -> str:
    """Which parameters a prediction has, and how old the rows are that they were fitted to."""
    if size["stack_fingerprint"] in (None, "data sheet", "prediction"):
        return "from data sheets"
    said = f"calibrated on rows of {size['stack_fingerprint'].replace('|', ' on ')}"
    if not size["started_at"]:
        return said
    until = datetime.date.fromisoformat(size["started_at"][:10])
    days = max((today - until).days, 0)
    return f"{said} until {until} ({days} {'day' if days == 1 else 'days'} old)"


def warning(tables: Tables) -> str:
    """Under weak scaling the same tokens take fewer steps on more GPUs; else empty."""
    steps = sorted({row["tokens_per_step"] for row in tables["sizes"]})
    if tables["comparison_groups"][0]["study_kind"] != "weak" or len(steps) < 2:
        return ""
    return (
        f"Weak scaling: a step takes {amount(steps[0])} to {amount(steps[-1])} tokens. More "
        f"{tables.words['GPUs']} train the same tokens in fewer steps, which is another training."
    )


def why_nothing(tables: Tables) -> str:
    """That no layout can be advised, with the commonest reason."""
    progress = tables["progress"][0]
    if not progress["points"]:
        said = f"Nothing can run: all {progress['refusals']} combinations were refused"
        return said + _commonest(row["reason"] for row in tables["refused"])
    if progress["failed"]:
        said = f"No layout ran: {progress['failed']} of {progress['points']} points failed"
        failed = [row for row in tables["estimates"] if row["outcome"] != "ok"]
        return said + _commonest(row["error_message"] or row["outcome"] for row in failed)
    if progress["waiting"]:
        return f"No point has a result yet: {progress['waiting']} wait."
    return "No layout fits at any size."


def _commonest(reasons: Iterable[str]) -> str:
    """The end of a sentence: `, most often: CUDA out of memory.`."""
    first = Counter(reasons).most_common(1)
    return f", most often: {first[0][0].rstrip('.')}." if first else "."


def share_words(row: Record) -> str:
    """`92.6 %`, with its interval where it has one: `92.6 % (91–94 %)`."""
    if row["share_of_best"] is None:
        return ""
    low, high = row["share_low"], row["share_high"]
    if low is None or high is None:
        return percent(row["share_of_best"], 1)
    ends = f"{digits(100 * low, 0)}–{digits(100 * high, 0)}"
    return f"{percent(row['share_of_best'], 1)} ({ends})"
