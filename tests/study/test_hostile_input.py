"""Many wrong studies: each is a plan, or one sentence."""

import random
import string
import time

import pytest
import yaml

from scaling.errors import InputError
from scaling.layout.axes import AXES
from scaling.record import files
from scaling.study import grid
from scaling.study.load import load_study
from tests.conftest import STUDY

pytestmark = pytest.mark.slow

STUDIES = 250
VALUES = [
    None, True, False, 0, 1, 2, 3, 8, -1, 1.5, 10**7, 2**63, 10**30, float("nan"), float("inf"),
    "", "yes", "010", "1:30", "mini", "here", "there", "bf16", "x" * 300, "[/b]", "\x1b[2J", "ü",
    "../../etc/passwd", "$(touch x)", [], [1], [[1]], [1, 2, 4], [None], {}, {"a": 1}, [1, "2"],
    list(range(1, 300)),
]  # fmt: skip
KEYS = [
    *AXES, "model", "cluster", "world_size", "global_batch_size", "batch_size_per_gpu",
    "seq_length", "title", "kind", "mode", "axes", "layouts", "measure", "probe", "report",
    "max_points", "replicates", "measured_steps", "warmup_steps", "repeats", "time_limit_s",
    "budget_gpu_hours", "seed", "knee_share", "enabled", "gradient_clipping", "nonsense", "",
]  # fmt: skip
TEXTS = [
    "&a [*a]", "<<: *x", "!!python/name:os.system", "? {a: b}\n: c", "[" * 500, "{" * 50, "a: b: c",
    "\t- x", "%YAML 9.9", "---\n---", "'", '"\\x1b"', "key: |\n  \x07", "2026-02-31", "\x00", "~",
    "- - -", ".inf", "0x10", "1e400", "9" * 5000, "#" * 5000, "\ufeff", "\u202e", "a: &a 1\nb: *a",
]  # fmt: skip


def studies(rng):
    """Texts of study files: a good one with values replaced, or with text put in anywhere."""
    while True:
        study = yaml.safe_load(yaml.safe_dump(STUDY))
        study["layouts"] = [{}]
        study["measure"] = {}
        for _ in range(rng.randrange(1, 4)):
            where = rng.choice([study, study["axes"], study["layouts"], study["measure"]])
            if isinstance(where, list):
                where.append(
                    rng.choice([rng.choice(VALUES), {rng.choice(KEYS): rng.choice(VALUES)}])
                )
            elif isinstance(where, dict):
                where[rng.choice(KEYS)] = rng.choice(VALUES)
            if not isinstance(study["axes"], dict) or not isinstance(study["layouts"], list):
                break
            if not isinstance(study["measure"], dict):
                break
        text = yaml.safe_dump(study, allow_unicode=True)
        if rng.random() < 0.4:
            at = rng.randrange(len(text))
            junk = rng.choice([*TEXTS, "".join(rng.choices(string.printable, k=8))])
            text = text[:at] + junk + text[at + rng.randrange(3) :]
        yield text


def test_every_study_is_a_plan_or_one_sentence(config, tmp_path):
    rng = random.Random(31)
    path = config / "studies" / "one.yaml"
    generated = studies(rng)
    refusals = []
    for number in range(STUDIES):
        text = next(generated)
        path.write_text(text, encoding="utf-8", newline="")
        started = time.process_time()
        try:
            plan = grid.expand_grid(load_study(path, config))
        except InputError as error:
            refusals.append(str(error))
        else:
            if number % 10 == 0:  # and what is accepted fits into its tables
                files.write_points(tmp_path / "results", plan)
        assert time.process_time() - started < 60, text[:2000]  # none hangs
    assert STUDIES / 4 < len(refusals) < STUDIES
    for sentence in refusals:
        assert sentence.startswith(f"{path}: ")
        assert sentence.isprintable(), sentence
        assert len(sentence) < 1500, sentence


@pytest.mark.parametrize("study", ["x" * 300, "x" * 300 + ".yaml", "a\x00b", ".", "..", "/"])
def test_a_name_that_no_file_can_have_is_no_study(config, study):
    with pytest.raises(InputError, match=r"no such study|the file name"):
        load_study(study, config)
