"""`scaling expect`: one screen, JSON, a log, and sentences about mistakes."""

import pytest

MODEL = ("--model", "llama3_8b", "--cluster", "h100-80gb-dgx")
LAYOUT = ("--tp", "2", "--zero-stage", "1", "--micro-batch-size", "1")
NUMBER = ("--tokens-per-s-per-gpu", "6300")
ASKED = ("expect", *MODEL, "--gpus", "64", "--global-batch-size", "1024", *LAYOUT, *NUMBER)

HEAD = """\
using world size: 16, data-parallel size: 8, context-parallel size: 1, tensor-model-parallel size: 2, pipeline-model-parallel size: 1
  global_batch_size ............................... 128
  hidden_size ..................................... 4096
  micro_batch_size ................................ 1
  num_attention_heads ............................. 32
  num_layers ...................................... 32
  seq_length ...................................... 4096
"""  # noqa: E501
STEP = (
    " [2026-01-01 00:00:00] iteration {n:8d}/     100 | consumed samples: 0 | elapsed time per "
    "iteration (ms): 4096.0 | learning rate: 1.0E-05 | lm loss: 9.5E+00 | grad norm: 1.0 |\n"
)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(HEAD + "".join(STEP.format(n=n) for n in range(1, 9)))
    return path


def test_the_answer_is_one_screen_of_80_columns(say):
    code, out, err = say(*ASKED)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("llama3_8b on 64 GPUs of h100-80gb-dgx: tp 2, ZeRO-1, ")
    starts = [line.split(" ")[0] for line in lines]
    for part in ("given", "expected", "interval", "from", "so", "published", "layouts", "look"):
        assert part in starts
    assert "so        below the interval: slower than more than 99 % of what is expected" in lines
    assert "from      data sheets; how wide: errors on published rows" in lines


def test_json_has_the_facts_of_the_screen(facts):
    told = facts(*ASKED)
    assert (told["given"], told["place"], told["source"]) == (6300.0, "below", "data sheet")
    assert told["low"] < told["expected"] < told["high"]
    assert told["layout"]["tp"] == 2
    assert told["parts"]["compute"] > 0
    assert [row["label"] for row in told["published"]] == ["published", "published"]
    assert {"label", "gain", "chance", "tp"} <= told["faster"][0].keys()
    assert told["looks"]


def test_axes_without_an_option_go_by_layout(facts):
    layout = facts(*ASKED, "--layout", "compile=true,sequence_parallel=true")["layout"]
    assert (layout["compile"], layout["sequence_parallel"], layout["tp"]) == (True, True, 2)


def test_a_batch_that_nobody_states_is_assumed_and_said(say, facts):
    few = ("expect", *MODEL, "--gpus", "64", *NUMBER)
    code, _, err = say(*few)
    assert (code, err) == (0, "assumed: 1,024 sequences, 4.19 M tokens a step\n")
    layout = facts(*few, "--gradient-accumulation-steps", "3")["layout"]
    assert layout["gradient_accumulation_steps"] == 3
    layout = facts(*few, "--gpus", "48", "--pp", "3")["layout"]
    assert layout["gradient_accumulation_steps"] == 63  # 21 rounds through 3 stages


def test_a_log_gives_number_and_layout(say, facts, log):
    asked = ("expect", *MODEL, "--log", log, "--trainer", "megatron")
    code, _, err = say(*asked)
    assert (code, err) == (0, "")
    told = facts(*asked)
    # 128 x 4,096 tokens in 4.096 s on 16 GPUs
    assert told["given"] == pytest.approx(8000)
    assert (told["gpus"], told["layout"]["tp"], told["layout"]["engine"]) == (16, 2, "megatron")
    assert told["layout"]["gradient_accumulation_steps"] == 16
    assert facts(*asked, "--column", "zero_stage=1")["layout"]["zero_stage"] == 1


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (("--cluster", "h101"), "unknown cluster 'h101'"),
        (("--model", "llama9"), "--model llama9: not in config/models.yaml"),
        (("--layout", "foo=1"), "foo=1: no axis=value"),
        (("--precision", "bf17"), "precision[0]='bf17'"),
        (("--tp", "3"), "do not divide by 3 ranks"),
        (("--gpus", "12", "--global-batch-size", "12"), "--gpus 12: cluster h100-80gb-dgx has"),
        (("--gradient-accumulation-steps", "2"), "--global-batch-size is given; leave one"),
        (("--trainer", "megatron"), "--trainer and --column say how to read a --log"),
        (("--calibration", "absent.json"), "absent.json: no such file"),
        (("--log", "x.log"), "--log x.log: give --trainer"),
        (("--log", "x.log", "--trainer", "hf"), "--log x.log tells the number"),
    ],
)
def test_a_mistake_is_one_sentence(refusal, changed, sentence):
    assert sentence in refusal(*ASKED, *changed)


@pytest.mark.parametrize(
    ("left_out", "sentence"),
    [
        (MODEL[:2], "--model: missing"),
        (MODEL[2:], "--cluster: missing"),
        (("--gpus", "64"), "--gpus: missing"),
        (NUMBER, "--tokens-per-s-per-gpu: give the number in question, or --log"),
    ],
)
def test_what_is_missing_is_named(refusal, left_out, sentence):
    at = ASKED.index(left_out[0])
    assert refusal(*ASKED[:at], *ASKED[at + 2 :]).startswith(sentence)


def test_a_log_of_another_model_is_refused(refusal, log):
    other = ("--model", "llama2_70b", "--cluster", "h100-80gb-dgx")
    told = refusal("expect", *other, "--log", log, "--trainer", "megatron")
    assert f"{log}: says num_layers=32, but llama2_70b has 80" in told
