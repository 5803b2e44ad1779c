"""An entry of trainers.yaml is checked, and says what a program cannot be told."""

import pytest

from scaling.errors import InputError
from scaling.layout.engines import engine_refusals, programs
from scaling.layout.layout import Layout
from scaling.trainers.entries import axis_refusals, load_trainers, trainer_named
from tests.shipped import MODELS

ENTRY = """
mine:
  source: a test
  command: [python, train.py, --tp, "{tp}"]
  reads:
    step: 'step'
    fields: {loss: 'loss: (\\S+)'}
"""


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("{tp}", "{tensor}"), "'tensor' is no axis or size: "),
        (("(\\S+)", "\\S+"), "has 0 groups; it needs one, around the value"),
        (("(\\S+)", "(\\S+"), "is no regular expression: "),
        (("{loss:", "{lost:"), "mine.reads.fields.lost"),
        (("  reads:", "  flags: {tpp: [x]}\n  reads:"), "flags.tpp: no axis or size: did you mean"),
        (("  reads:", "  reasons: {tpp: x}\n  reads:"), "reasons.tpp: no axis or size: did you"),
        (("  reads:", "  flags: {tp: {2: x}}\n  reads:"), "mine.flags.tp[2]='x': must be a list"),
        (("    step: 'step'\n", ""), "mine.reads.step: is missing"),
        (("  source: a test\n", ""), "mine.source: is missing"),
        (("command:", "commands:"), "unknown key 'commands': did you mean 'command'?"),
    ],
)
def test_a_wrong_entry_is_one_sentence_with_the_file_and_the_key(tmp_path, change, sentence):
    path = tmp_path / "trainers.yaml"
    path.write_text(ENTRY.replace(*change))
    with pytest.raises(InputError) as told:
        load_trainers(path)
    assert str(told.value).startswith(f"{path}: mine")
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


def test_an_unknown_trainer_is_told_with_the_nearest_name():
    with pytest.raises(InputError, match=r"trainer 'megatrn': .*did you mean 'megatron'\?"):
        trainer_named("megatrn")


@pytest.mark.parametrize(
    ("trainer", "choice", "sentence"),
    [
        (
            "megatron",
            {"compile": True},
            "megatron cannot be told compile=true: Megatron-LM has CUD",
        ),
        (
            "megatron",
            {"zero_shard_size": 2},
            "megatron cannot be told zero_shard_size=2: config/tra",
        ),
        (
            "torchtitan",
            {"zero_stage": 1},
            "torchtitan cannot be told zero_stage=1: torchtitan shar",
        ),
        ("torchtitan", {"cp_style": "ring"}, "torchtitan cannot be told cp_style=ring"),
        ("nemo", {"precision": "fp32"}, "nemo cannot be told precision=fp32"),
        ("hf", {"pp": 2}, "hf cannot be told pp=2: the Trainer has no pipeline"),
        ("own", {}, "trainer 'own': not in config/trainers.yaml"),
    ],
)
def test_what_a_program_cannot_be_told_is_a_refusal_with_its_reason(trainer, choice, sentence):
    layout = Layout(seq_length=4096, engine=trainer, **choice)
    if trainer == "own":
        with pytest.raises(InputError, match=sentence):
            list(engine_refusals(MODELS["llama3_8b"], layout))
        return
    (said,) = engine_refusals(MODELS["llama3_8b"], layout)
    assert said.startswith(sentence)


@pytest.mark.parametrize("trainer", ["megatron", "torchtitan", "nemo", "hf"])
def test_a_plain_layout_can_be_told(trainer):
    assert list(axis_refusals(trainer, MODELS["llama3_8b"], Layout(seq_length=4096))) == []


def test_parts_of_a_model_that_a_program_cannot_be_told_are_refused():
    layout = Layout(seq_length=4096)
    assert "num_experts=8" in next(axis_refusals("hf", MODELS["mixtral_8x7b"], layout))
    assert list(axis_refusals("megatron", MODELS["deepseek_v3"], layout)) == []


def test_entries_of_a_folder_are_added_to_those_that_ship_or_replace_one(tmp_path, monkeypatch):
    (tmp_path / "config").mkdir()
    texts = (ENTRY, ENTRY.replace("mine:", "hf:"), ENTRY.replace("mine:", "my.other-2:"))
    (tmp_path / "config" / "trainers.yaml").write_text("".join(texts))
    monkeypatch.chdir(tmp_path)
    names = ["deepspeed", "torch", "megatron", "torchtitan", "nemo", "hf", "mine", "my.other-2"]
    assert programs() == names
    assert trainer_named("hf").source == "a test"
    assert trainer_named("megatron").source.startswith("Megatron-LM")
