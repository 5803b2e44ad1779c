"""Every number of three pages again from rows, by code outside the product.

The pages are of the first rows of a real GPU, of an import, and of a truth that is made up: there
one layout does not fit, one ends in a timeout, and two are equally fast.
"""

import itertools
import math
import re

import pytest
from typer.testing import CliRunner

from scaling.cli.verbs import app
from scaling.layout.layout import Layout
from scaling.predict.fit import calibrate
from scaling.record.files import write_points, write_rows
from scaling.study.grid import Plan
from tests.conftest import PROJECT
from tests.h100 import PROBES, h100_study
from tests.report.recomputed import (
    TIME,
    hours,
    number,
    of_layout,
    page_text,
    plain,
    rate,
    read_rows,
    selections,
    table_rows,
)
from tests.report.synthetic_study import point, timed_row
from tests.report.synthetic_study import row as row_of

pytestmark = pytest.mark.slow
GIB = 2**30
SIZES = (8, 16, 32)
HEAD = (
    "framework,model,num_layers,hidden_size,num_heads,num_kv_heads,ffn_hidden_size,gated_mlp,"
    "vocab_size,tied_embeddings,seq_length,cluster,gpus_per_node,world_size,tp,pp,cp,dp,zero_stage,"
    "sequence_parallel,micro_batch_size,global_batch_size,activation_checkpointing,attention,"
    "fused_norm,precision,outcome,step_time_s,peak_memory_bytes\n"
)


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)


def imported_csv():
    """Published rows of two models: seconds of a step by a formula, one layout out of memory."""
    lines = []
    for model, layers, ideal in (("small", 16, 40.0), ("large", 32, 160.0)):
        shape = f"{layers},2048,32,32,8192,true,32000,true,4096"
        for size, tp, stage, micro in itertools.product(SIZES, (1, 2, 4), (0, 1), (1, 4)):
            dp = size // tp
            took = ideal / size * 1.07 ** (tp // 2) * 1.02**stage * (0.9 if micro == 4 else 1)
            took *= 1 + 0.004 * size
            gone = (model, tp, stage, micro) == ("large", 1, 0, 4)
            end = "oom,," if gone else f"ok,{took:.6f},{(5 + 20 // tp + 9 * micro) * 10**9}"
            lines.append(
                f"nanotron 0.5,{model},{shape},h100-80gb-dgx,8,{size},{tp},1,1,{dp},{stage},false,"
                f"{micro},256,none,flash2,false,bf16,{end}\n"
            )
    return HEAD + "".join(lines)


# share of the ideal rate at 8 GPUs, and what a doubling keeps
TRUE = {(1, 1): (1.0, 0.923), (2, 1): (0.926, 0.926), (1, 3): (1.0, 0.923), (4, 1): (0.8, 0.9)}


def write_truth(folder):
    """Two runs of each layout, given by tp and ZeRO stage, at each size."""
    points, rows = [], []
    for ((tp, stage), (share, kept)), size, repeat in itertools.product(
        TRUE.items(), SIZES, range(2)
    ):
        dp = size // tp
        layout = Layout(
            tp=tp, dp=dp, zero_stage=stage, seq_length=4096, gradient_accumulation_steps=128 // dp
        )
        points.append(one := point(layout, model="llama-8b", repeat=repeat))
        if (tp, stage, size) == (1, 1, 8):
            rows.append(row_of(one, "oom", error_message="CUDA out of memory"))
        elif (tp, stage, size) == (4, 1, 16):
            rows.append(row_of(one, "timeout", error_message="took too long"))
        else:
            seconds = 100 / size / share / kept ** math.log2(size / 8)
            seconds *= 1.002 if repeat else 0.998
            rows.append(timed_row(one, seconds, noise=0.002))
    write_points(folder, Plan(points=tuple(points), refusals=()))
    write_rows(folder / "rows" / "all.parquet", rows)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """By name: text of the page, the rows behind it, and what was predicted of each point."""
    root = tmp_path_factory.mktemp("recomputed")
    real = h100_study(root)
    points, fitted = real / "points.parquet", real / "calibration.json"
    run("calibrate", real / "rows", fitted, "--points", points, "--probes", PROBES)
    run("predict", points, real / "predictions.parquet", "--calibration", fitted)
    run("report", real, "--reports", PROJECT / "reports", "--no-charts")
    (root / "published.csv").write_text(imported_csv())
    run("import", root / "published.csv", root / "imported")
    run("report", root / "imported", "--reports", PROJECT / "reports", "--no-charts")
    write_truth(root / "truth")
    run("report", root / "truth", "--reports", PROJECT / "reports", "--no-charts")
    return {
        "truth": (
            page_text(root / "truth" / "report.html"),
            read_rows(root / "truth" / "rows"),
            [],
        ),
        "h100": (
            page_text(real / "report.html"),
            read_rows(real / "rows"),
            read_rows(real / "predictions.parquet"),
        ),
        "imported": (
            page_text(root / "imported" / "report.html"),
            read_rows(root / "imported" / "published.parquet"),
            [],
        ),
    }


@pytest.fixture(params=["h100", "imported", "truth"])
def told(request, pages):
    """Each selection of a page with the rows that it is about."""
    text, rows, predicted = pages[request.param]
    chosen = []
    for answer, evidence, cells in selections(text):
        kind = plain(answer)
        model, cluster, batch, length = re.search(
            r"^(\S+) on (\S+?),? ?, strong scaling: (\d+) sequences of (\d+) tokens", kind
        ).groups()
        own = [
            row
            for row in rows
            if (row["model"], row["cluster"]) == (model, cluster)
            and (row["global_batch_size"], row["seq_length"]) == (int(batch), int(length))
        ]
        assert own
        chosen.append((answer, evidence, cells, own, predicted))
    assert len(chosen) == {"h100": 4, "imported": 2, "truth": 1}[request.param]
    return chosen


def sizes_of(rows):
    return sorted({row["world_size"] for row in rows})


def advised(evidence, size, rows):
    """The runs of the layout that stands first at a size."""
    (axes, _), *_ = table_rows(evidence, size)
    return of_layout([row for row in rows if row["world_size"] == size], axes)


def test_time_and_cost_are_tokens_over_the_rate_of_the_rows(told):
    for answer, evidence, cells, rows, _ in told:
        text = plain(answer)
        tokens = number(re.search(r"for ([\d. ]+[GMT]) tokens\.", text)[1])
        assert tokens == pytest.approx(20 * rows[0]["total_params"], rel=0.005)
        bills = re.findall(rf"(\d+) GPUs? with [^:]+: ({TIME}), ([\d. ]+[kM]?) GPU-hours", text)
        bills += [
            (size, took, cost)
            for size, took, cost in re.findall(
                rf'data-size="(\d+)".*?<b data-is="time">({TIME})</b> '
                r'<span data-is="cost">([\d. ]+ ?[kM]?) GPU-hours</span>', cells, re.S,
            )
        ]  # fmt: skip
        assert len(bills) >= 1 + len(sizes_of(rows))
        for size, took, cost in bills:
            true = tokens / rate(advised(evidence, int(size), rows)) / 3600
            assert hours(took) == pytest.approx(true, rel=0.01)
            assert number(cost) == pytest.approx(int(size) * true, rel=0.01)
        low, high, unit, least, most = re.search(
            r"Between ([\d. ]+) and ([\d. ]+) (\w+), ([\d. ]+[kM]?) and ([\d. ]+[kM]?) GPU-hours "
            r"\(95 %", text,
        ).groups()  # fmt: skip
        used, took, cost = bills[0]
        low, high = hours(f"{low} {unit}"), hours(f"{high} {unit}")
        assert low < hours(took) < high
        for spent, time in ((least, low), (cost, hours(took)), (most, high)):
            assert number(spent) == pytest.approx(int(used) * time, rel=0.01)


def test_a_cheaper_or_faster_offer_is_one(told):
    for answer, *_ in told:
        text = plain(answer)
        offered = rf"with [^:]+: ({TIME}), ([\d. ]+[kM]?) GPU-hours"
        used = re.search(offered, text)
        for name, place in (("Cheaper", 2), ("Faster", 1)):
            if other := re.search(rf"{name} \d+ GPUs? {offered}", text):
                read = hours if place == 1 else number
                assert read(other[place]) < read(used[place])


def test_every_layout_has_the_numbers_of_its_rows(told):
    for _, evidence, _, rows, _ in told:
        for size in sizes_of(rows):
            here = [row for row in rows if row["world_size"] == size]
            shown = table_rows(evidence, size)
            ran = [(axes, cells) for axes, cells in shown if len(cells) > 4]
            best = max(rate(of_layout(here, axes)) for axes, _ in ran)
            for axes, cells in ran:
                own = of_layout(here, axes)
                assert {row["outcome"] for row in own} == {"ok"}
                share, p_best, loss, tokens, mfu, step, memory, fits = cells
                assert number(tokens) == pytest.approx(rate(own), rel=0.01)
                assert number(step) == pytest.approx(own[0]["step_time_s"], rel=0.01)
                peak = own[0]["peak_memory_bytes"] / GIB
                assert number(memory.removesuffix(" GiB")) == pytest.approx(peak, rel=0.01)
                flops = own[0]["model_flops_per_token"] * rate(own) / size
                if mfu != "–":
                    used = flops / own[0]["peak_flop_per_s"]
                    assert number(mfu.removesuffix(" %")) == pytest.approx(100 * used, abs=0.6)
                middle, low, high = re.search(r"([\d.]+) % \((\d+)–(\d+)\)", share).groups()
                assert float(low) - 1 <= 100 * rate(own) / best <= float(high) + 1
                if loss != "–":
                    assert float(loss.split()[0]) == pytest.approx(100 - float(middle), abs=0.11)
                assert fits in ("ran", "–")
                assert 0 <= float(p_best.split()[0]) <= 100
            chances = [float(c[1].split()[0]) for _, c in ran if c[1] != "–"]
            assert sum(chances) == pytest.approx(100, abs=len(chances) / 2)


def test_failures_are_those_of_the_rows(told):
    for _, evidence, _, rows, _ in told:
        for size in sizes_of(rows):
            shown = [one for one in table_rows(evidence, size) if len(one[1]) <= 4]
            failed = {
                row["layout"]: row
                for row in rows
                if row["world_size"] == size and row["outcome"] != "ok"
            }
            assert len(shown) == len(failed)
            for axes, cells in shown:
                (row,) = of_layout([*failed.values()], axes)
                assert f"{row['outcome']} {row['error_message'] or ''}".strip() in " ".join(cells)


def test_each_step_gains_what_its_rows_gain(told):
    for answer, evidence, _, rows, _ in told:
        said = set(re.findall(
            r"(\d+) to (\d+) (?:GPUs, published: )?trains ([\d.]+) (% faster|times as fast)"
            r"(?: \((-?[\d.]+)–([\d.]+))?", plain(answer) + evidence,
        ))  # fmt: skip
        assert (len(said) > 0) == (len(sizes_of(rows)) > 1)
        for before, after, gain, kind, *ends in said:
            rates = [rate(advised(evidence, int(size), rows)) for size in (before, after)]
            true = rates[1] / rates[0]
            growth, *interval = (
                float(text) if kind != "% faster" else 1 + float(text) / 100
                for text in (gain, *ends)
                if text
            )
            assert growth == pytest.approx(true, rel=0.02)
            assert not interval or interval[0] - 0.01 <= true <= interval[1] + 0.01


def test_the_titles_of_the_charts_are_true(told):
    for _, evidence, _, rows, predicted in told:
        titles = re.findall(r"<h3>([^<]+)</h3><svg", evidence)
        largest = advised(evidence, max(sizes_of(rows)), rows)[0]
        for title in titles:
            if found := re.search(
                r"gives ([\d. k]+) tokens/s on (\d+) and ([\d. k]+) on (\d+)", title
            ):
                for said, size in (found.group(1, 2), found.group(3, 4)):
                    true = rate(advised(evidence, int(size), rows)) / int(size)
                    assert number(said) == pytest.approx(true, rel=0.01)
            elif found := re.search(r"needs ([\d.]+) GiB of ([\d.]+) GiB per GPU", title):
                peak = largest["peak_memory_bytes"] / GIB
                assert float(found[1]) == pytest.approx(peak, rel=0.01)
                assert float(found[2]) == pytest.approx(80, rel=0.01)
            elif found := re.search(
                r"(\d+) of (\d+) points? (?:is|are) predicted within 10 %", title
            ):
                by_point = {one["point_id"]: one["predicted_step_time_s"] for one in predicted}
                ratios = [row["step_time_s"] / by_point[row["point_id"]] for row in rows]
                assert int(found[2]) == len(ratios)
                assert int(found[1]) == sum(abs(one - 1) <= 0.1 for one in ratios)
            elif found := re.search(
                r"With (tp|micro-batch) (\d) instead of (\d) the rate is (\d+) % (\w+)", title
            ):
                axis = {"tp": "tp", "micro-batch": "micro_batch_size"}[found[1]]
                ratios = list(pair_ratios(rows, axis, int(found[2]), int(found[3])))
                said = 1 + float(found[4]) / 100 * (1 if found[5] == "higher" else -1)
                assert min(ratios) - 0.01 <= said <= max(ratios) + 0.01
            else:
                assert re.search(r"trains|of a step|is compute|No choice changes", title), title


def test_every_effect_has_the_extremes_of_its_pairs(pages):
    text, rows, _ = pages["imported"]
    seen = 0
    for _, evidence, _ in selections(text):
        model = re.search(r"Layouts of (\S+) on", evidence)[1]
        own = [row for row in rows if row["model"] == model]
        for name, to, start, low, high in re.findall(
            r"(tp|micro-batch) (\d) instead of (\d): [^;]*; all pairs ([\d.]+) to ([\d.]+)",
            evidence,
        ):
            axis = {"tp": "tp", "micro-batch": "micro_batch_size"}[name]
            ratios = list(pair_ratios(own, axis, int(to), int(start)))
            assert float(low) == pytest.approx(min(ratios), abs=0.006)
            assert float(high) == pytest.approx(max(ratios), abs=0.006)
            seen += 1
    assert seen >= 4


def pair_ratios(rows, axis, to, start):
    """Rates of layouts that differ on this axis only, at the same size."""
    others = [
        name for name in ("world_size", "tp", "zero_stage", "micro_batch_size") if name != axis
    ]
    ran = {
        (row[axis], *(row[name] for name in others)): row["step_time_s"]
        for row in rows
        if row["outcome"] == "ok"
    }
    for (value, *rest), seconds in ran.items():
        if value == start and (to, *rest) in ran:
            yield seconds / ran[(to, *rest)]


def test_the_shares_of_a_step_are_those_of_its_profile(pages):
    text, rows, _ = pages["h100"]
    for _, evidence, _ in selections(text):
        shares = re.findall(
            r'data-tip="1 GPU, ([^"]+), measured: ([a-z ]+) (\d+) % of ([\d.]+) (ms|s)"', evidence
        )
        assert sum(int(share) for _, _, share, _, _ in shares) == pytest.approx(100, abs=1)
        for _, part, share, took, unit in shares:
            seconds = float(took) / (1000 if unit == "ms" else 1)
            (own,) = [row for row in rows if abs(row["step_time_s"] / seconds - 1) < 0.004]
            if part == "compute":
                assert own["compute_s"] / own["step_time_s"] == pytest.approx(
                    int(share) / 100, abs=0.2
                )


def test_the_health_line_names_the_last_day_and_single_runs(pages):
    text, rows, _ = pages["h100"]
    for answer, *_ in selections(text):
        day = re.search(r"Measured here, last on (\S+)", plain(answer))[1]
        assert day == max(row["started_at"] for row in rows)[:10]
        assert "Every layout ran once; a noise of" in answer


def test_equal_layouts_are_too_close_to_call_and_have_one_name_each(pages):
    text, _, _ = pages["truth"]
    ((answer, evidence, _),) = selections(text)
    chances = sorted(float(cells[1].split()[0]) for _, cells in table_rows(evidence, 32))
    assert chances[-2] > 5
    assert "Too close to call: the best is" in answer
    names = set(re.findall(r'title="tp=[^"]+">([^<]+)</span>', text))
    assert names == {"ZeRO-1", "tp 2, ZeRO-1", "ZeRO-3", "tp 4, ZeRO-1"}
    assert not re.search(r"ZeRO \d|no fused|Z1\b", re.sub(r"base64,[\w+/=]+", "", text))


def test_a_report_is_made_and_says_so_where_the_fit_fails(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ValueError("operands could not be broadcast")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibrate, "calibrate", fail)
    study = h100_study(tmp_path)
    points, fitted = study / "points.parquet", study / "calibration.json"
    run("calibrate", study / "rows", fitted, "--points", points)
    run("predict", points, study / "predictions.parquet", "--calibration", fitted)
    run("report", study, "--reports", PROJECT / "reports", "--no-charts")
    said = "calibration.json: the fit failed (ValueError: operands could not be broadcast)"
    assert said in page_text(study / "report.html")
