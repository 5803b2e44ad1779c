"""Every number of a page is computed again here, from rows, by code outside the product.

The truth is made up: rates by a formula and one node 8 % slow. There is one layout that does not
fit, one that ends in a timeout, and two layouts that are equally fast.
"""

import html
import math
import re
import statistics
from itertools import pairwise

import pyarrow.parquet as pq
import pytest

from scaling.analyse.warehouse import tabulate
from scaling.cluster.hardware import Cluster
from scaling.layout.layout import Layout
from scaling.record.files import write_points, write_rows
from scaling.report.page.page import write_report
from scaling.study.grid import Plan
from tests.report.conftest import REPORTS
from tests.report.synthetic_study import point, row, timed_row

pytestmark = pytest.mark.slow

PRICE = 2.5
SIZES = (8, 16, 32)
# share of the ideal rate at 8 GPUs, and what a doubling keeps
TRUE = {"tp1z1": (1.0, 0.923), "tp2z1": (0.926, 0.926), "tp1z3": (1.0, 0.923), "tp4z1": (0.8, 0.9)}
CHOICES = {
    "tp1z1": {"tp": 1, "zero_stage": 1}, "tp2z1": {"tp": 2, "zero_stage": 1},
    "tp1z3": {"tp": 1, "zero_stage": 3}, "tp4z1": {"tp": 4, "zero_stage": 1},
}  # fmt: skip
BASE = 100.0  # seconds of a step of the whole batch on one ideal GPU
CLUSTERS = {
    "h100": Cluster(
        gpu="h100-80gb", gpus_per_node=8, nodes=8, usd_per_gpu_hour=PRICE, source="made up",
        node_link_bytes_per_s=4e11,
    )
}  # fmt: skip


def true_seconds(name, size):
    share, kept = TRUE[name]
    return BASE / size / share / kept ** math.log2(size / 8)


def planned(size, repeat, *, tp, zero_stage):
    dp = size // tp
    layout = Layout(
        tp=tp, dp=dp, zero_stage=zero_stage, seq_length=4096, gradient_accumulation_steps=128 // dp
    )
    return point(layout, model="llama-8b", repeat=repeat)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("truth") / "study"
    points, rows = [], []
    for name, choices in CHOICES.items():
        for size in SIZES:
            for repeat in range(2):
                one = planned(size, repeat, **choices)
                points.append(one)
                if (name, size) == ("tp1z1", 8):
                    rows.append(row(one, "oom", error_message="CUDA out of memory"))
                elif (name, size) == ("tp4z1", 16):
                    rows.append(row(one, "timeout", error_message="took too long"))
                else:
                    noise = 1 + 0.002 * (1 if repeat else -1)
                    rows.append(timed_row(one, true_seconds(name, size) * noise, noise=0.002))
    write_points(folder, Plan(points=tuple(points), refusals=()))
    write_rows(folder / "rows" / "all.parquet", rows)
    tabulate(folder, REPORTS / "sql", clusters=CLUSTERS)
    write_report(folder, REPORTS, charts=False)
    return folder


@pytest.fixture(scope="module")
def page(study):
    text = html.unescape((study / "report.html").read_text(encoding="utf-8"))
    return text.replace("\u202f", " ").replace("\u00a0", " ").replace("\u2011", "-")


@pytest.fixture(scope="module")
def rates(study):
    """Median tokens/s by size and layout, straight from the rows."""
    found = {}
    for one in pq.read_table(study / "rows" / "all.parquet").to_pylist():
        if one["outcome"] == "ok":
            tokens = one["global_batch_size"] * one["seq_length"] / one["step_time_s"]
            key = one["world_size"], f"tp{one['tp']}z{one['zero_stage']}"
            found.setdefault(key, []).append(tokens)
    return {key: statistics.median(values) for key, values in found.items()}


def number(text):
    scale = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    found = re.fullmatch(r"\$?([\d. ]+?) ?([kMGT]?)", text.strip())
    return float(found[1].replace(" ", "")) * scale[found[2]]


def hours(text):
    value, unit = text.rsplit(" ", 1)
    return number(value) * {"days": 24, "hours": 1, "minutes": 1 / 60, "seconds": 1 / 3600}[unit]


def name_of(words):
    tp = re.search(r"tp (\d)", words)
    stage = re.search(r"ZeRO-(\d)", words)
    return f"tp{tp[1] if tp else 1}z{stage[1]}"


def test_headline_and_alternatives_are_the_rate_times_tokens_and_price(page, rates):
    tokens = number(re.search(r"for ([\d. ]+[GMT]) tokens\.", page)[1])
    offers = re.findall(r"(\d+) GPUs with ([^:<]+): ([\d. ]+ \w+), (\$[\d. ]+k?M?)", page)
    cells = re.findall(
        r'data-size="(\d+)"><a [^>]*><b data-is="time">([\d. ]+ \w+)</b> '
        r'<span data-is="cost">(\$[\d. ]+k?M?)</span> '
        r"<span>[^<]*</span> <small>([^<]+)</small>",
        page,
    )
    assert len(offers) >= 2
    assert {int(size) for size, *_ in cells} == set(SIZES)
    for size, words, took, dollars in [*offers, *((n, name, *bill) for n, *bill, name in cells)]:
        rate = rates[int(size), name_of(words)]
        assert hours(took) == pytest.approx(tokens / rate / 3600, rel=0.01)
        spent = PRICE * int(size) * tokens / rate / 3600
        assert number(dollars) == pytest.approx(spent, rel=0.01)


def test_the_steps_gain_what_the_truth_gains(page, rates):
    steps = re.findall(
        r"(\d+) to (\d+) trains ([\d.]+) (% faster|times as fast) "
        r"\((-?[\d.]+)–([\d.]+)(?: %)?, 95 % interval\)",
        page,
    )
    assert {(int(a), int(b)) for a, b, *_ in steps} == set(pairwise(SIZES))
    for before, after, gain, kind, low, high in steps:
        stretch = [max((rates[int(n), name], name) for name in TRUE if (int(n), name) in rates)
                   for n in (before, after)]  # fmt: skip
        actual = stretch[1][0] / stretch[0][0]
        ends = [float(end) if kind != "% faster" else 1 + float(end) / 100 for end in (low, high)]
        said = float(gain) if kind != "% faster" else 1 + float(gain) / 100
        assert said == pytest.approx(actual, rel=0.02)
        assert ends[0] - 0.01 <= actual <= ends[1] + 0.01


def test_the_share_of_tp_2_is_the_true_one_and_its_interval_holds_it(page):
    (table,) = re.findall(r'<details class="size" id="s1-8".*?</table>', page, re.S)
    row = re.search(r">tp 2, ZeRO-1</span>.*?</span>([\d.]+) % \((\d+)–(\d+)\)", table, re.S)
    assert float(row[1]) == pytest.approx(92.6, abs=1)
    assert float(row[2]) - 0.5 <= 92.6 <= float(row[3]) + 0.5


def test_probabilities_add_up_and_equal_layouts_are_too_close_to_call(page):
    (table,) = re.findall(r'<details class="size" id="s1-32".*?</table>', page, re.S)
    chances = [int(value) for value in re.findall(r"</td><td>(\d+) %</td><td>[\d.]+ %", table)]
    assert sum(chances) == pytest.approx(100, abs=2)
    assert sorted(chances)[-2] > 5
    assert "Too close to call: the best is" in page


def test_failures_stand_with_their_reason_and_never_as_a_number(page):
    (small,) = re.findall(r'<details class="size" id="s1-8".*?</table>', page, re.S)
    (middle,) = re.findall(r'<details class="size" id="s1-16".*?</table>', page, re.S)
    assert re.search(r"ZeRO-1</span>.*?oom</span> CUDA out of memory", small, re.S)
    assert re.search(r"tp 4, ZeRO-1</span>.*?timeout</span> took too long", middle, re.S)


def test_one_gpu_gives_what_its_rows_give(page, rates):
    title = re.search(r"One GPU gives ([\d. ]+ k?) ?tokens/s on 8 and ([\d. ]+ k?) ?tokens", page)
    title = title or re.search(r"One GPU gives ([\d. k]+) tokens/s on 8 and ([\d. k]+) on 32", page)
    for size, said in zip((8, 32), title.groups(), strict=True):
        best = max(rate for (n, _), rate in rates.items() if n == size) / size
        assert number(said) == pytest.approx(best, rel=0.01)


def test_one_layout_has_one_name_on_the_whole_page(page):
    names = set(re.findall(r'title="tp=[^"]+">([^<]+)</span>', page))
    assert names == {"ZeRO-1", "tp 2, ZeRO-1", "ZeRO-3", "tp 4, ZeRO-1"}
    words = re.sub(r"base64,[\w+/=]+", "", page)
    assert not re.search(r"ZeRO \d|no fused|Z1\b", words)
