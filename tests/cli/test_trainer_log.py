"""`scaling import LOG --trainer T`: a log becomes one row of a source of its own."""

import re

import pyarrow.parquet as pq
import pytest

from scaling.cli.trainer_log import row_of_log
from scaling.errors import InputError

HEAD = "[titan] - Building device mesh with parallelism: pp=1, dp_shard=8, cp=1, tp=2, ep=1\n"
STEP = "step: {n}  loss:  7.5000  grad_norm:  1.2500  memory: 41.00GiB(51.25%)  tps: 8,192\n"
SAID = ["model=llama3_8b", "cluster=h100-80gb-dgx", "world_size=16", "global_batch_size=32",
        "seq_length=4096"]  # fmt: skip


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(HEAD + "".join(STEP.format(n=n) for n in range(1, 9)))
    return path


def test_a_log_is_imported_as_one_row(log, tmp_path, say):
    columns = [word for pair in SAID for word in ("--column", pair)]
    code, out, _ = say("import", log, "results/theirs", "--trainer", "torchtitan", *columns)
    assert code == 0
    assert "1 row of torchtitan -> results/theirs" in out
    (row,) = pq.read_table(tmp_path / "results/theirs/published.parquet").to_pylist()
    # 32 x 4,096 tokens over 16 GPUs of 8,192 tokens/s; the first two steps are warm-up
    assert row["step_times_s"] == [1.0] * 6
    assert (row["engine"], row["tp"], row["model"]) == ("torchtitan", 2, "llama3_8b")
    assert row["peak_memory_bytes"] == 41 * 2**30


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ([], "train.log: does not say model; give --column model=..."),
        (["mod=x"], "--column mod=x: did you mean 'model'?"),
        (["model"], "--column model: "),
        ([*SAID[:4], "seq_length=long"], "must be whole numbers"),
    ],
)
def test_what_a_log_does_not_say_is_asked_for(log, columns, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        row_of_log(log, "torchtitan", columns)


def test_a_log_without_a_step_is_one_sentence(log):
    with pytest.raises(InputError, match=r"train\.log: no line is a step of megatron"):
        row_of_log(log, "megatron", SAID)
    with pytest.raises(InputError, match="did you mean 'megatron'"):
        row_of_log(log, "megatrn", SAID)
    with pytest.raises(InputError, match="no such file"):
        row_of_log(log.with_name("absent.log"), "megatron", SAID)


@pytest.mark.parametrize("number", ["0", "1e400", "1e4000", "1e27", "nan", "0x10", "\u0661"])
@pytest.mark.parametrize(
    ("trainer", "step"),
    [
        ("torchtitan", STEP.replace("8,192", "NUMBER")),
        (
            "megatron",
            "iteration {n}/ 9 | elapsed time per iteration (ms): NUMBER | lm loss: 7.5 |\n",
        ),
    ],
)
def test_a_step_whose_time_cannot_be_is_no_row(log, trainer, step, number):
    log.write_text(HEAD + "".join(step.replace("NUMBER", number).format(n=n) for n in range(1, 9)))
    with pytest.raises(InputError, match=r"train\.log: tells the time of no ordinary step"):
        row_of_log(log, trainer, [*SAID, "tp=1", "pp=1"])
