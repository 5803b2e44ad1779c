"""`scaling command` and `model`, and the other verbs that take a config.json for a model."""

import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest

from scaling.layout.engines import programs
from scaling.trainers.entries import trainer_named
from scaling.trainers.logs import read_log
from tests.conftest import PROJECT
from tests.points import tiny_point
from tests.processes import ended
from tests.study.released import RELEASED

QWEN = RELEASED["qwen3-8b"][0]
LAYOUT = ("command", "tp=2,zero_stage=1,micro_batch_size=2", "--model", "llama3_8b")
ASKED = (*LAYOUT, "--gpus", "16", "--global-batch-size", "64")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_a_layout_of_axes_is_a_command_line(say):
    code, out, err = say(*ASKED, "--as", "megatron")
    assert (code, err) == (0, "")
    assert "torchrun --nproc-per-node 8 --nnodes 2" in out
    assert "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1" in out
    assert "--global-batch-size 64" in out
    assert "--use-distributed-optimizer" in out


def test_each_axis_that_a_program_cannot_say_is_a_line(say):
    code, out, err = say(*ASKED, "--as", "hf")
    assert code == 0
    assert err.splitlines() == [
        "hf cannot be told tp=2: the Trainer of the script has data-parallel ranks only"
    ]
    assert out.splitlines()[-1].startswith("torchrun")


def test_our_engines_measure_a_point_and_deepspeed_gets_its_configuration(say, tmp_path):
    code, out, _ = say(*ASKED, "--as", "deepspeed")
    assert code == 0
    assert out.splitlines()[-1] == "scaling measure launch/point.json launch/row.parquet"
    settings = json.loads((tmp_path / "launch" / "ds_config.json").read_text())
    assert settings["zero_optimization"]["stage"] == 1
    point = json.loads((tmp_path / "launch" / "point.json").read_text())
    assert (point["layout"]["tp"], point["gpu"]) == (2, "h100-80gb")


@pytest.mark.ranks
def test_the_printed_command_of_deepspeed_trains(say, tmp_path):
    path = tmp_path / "p.json"
    path.write_text(tiny_point(dp=2, zero_stage=1, measured_steps=5).to_json())
    _, out, _ = say("command", str(path), "--as", "deepspeed")
    words = out.splitlines()[-1].split()
    code, out, _ = say(*words[1:])
    assert code == 0
    assert out.strip().endswith(": ok")


@pytest.mark.ranks
def test_the_printed_command_of_hf_trains_on_two_ranks(say, tmp_path):
    path = tmp_path / "p.json"
    point = tiny_point(dp=2, zero_stage=3, warmup_steps=1, measured_steps=3)
    path.write_text(point.to_json())
    _, out, err = say("command", str(path), "--as", "hf")
    assert err == ""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PET_MASTER_PORT": str(free_port()),  # of torchrun; others may hold its default
        "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = ended("bash", "-c", out.splitlines()[-1], env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    reader = read_log(trainer_named("hf", PROJECT / "config"), done.stdout.splitlines())
    assert [step.number for step in reader.steps] == [1, 2, 3, 4]
    assert all(4 < step.values["loss"] < 8 for step in reader.steps)


def test_a_point_of_a_study_may_be_given_and_json_asked_for(facts, tmp_path):
    (tmp_path / "p.json").write_text(tiny_point(dp=2, zero_stage=3).to_json())
    told = facts("command", "p.json", "--as", "torchtitan")
    assert told["command"][:3] == ["python", "-m", "torchtitan.train"]
    assert told["environment"] == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert "torchtitan's --module and --config" in told["notes"][0]


TINY = ("--model", "tiny", "--as", "torch", "--gpus", "2")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("foo=1", *TINY), "foo=1: no axis=value"),
        (("tp=1,tp=2", *TINY), "tp is given twice"),
        (("tp=2", "--as", "torch"), "tp=2: a layout needs --model and --gpus"),
        (("tp=x", *TINY), "tp[0]='x': must be a whole"),
        (("zero_stage=7", *TINY), "zero_stage[0]=7"),
        (("tp=3", *TINY), "do not divide by 3 ranks"),
        (("tp=16", *TINY[:-1], "16"), "not divisible by tp=16"),
        (("tp=1", *TINY, "--out", "."), "point.json: cannot be written: Is a directory\n"),
        ((*ASKED[1:], "--as", "megatrn"), "did you mean 'megatron'?"),
    ],
)
def test_a_wrong_layout_is_one_sentence(refusal, tmp_path, arguments, sentence):
    (tmp_path / "point.json").mkdir()
    assert sentence in refusal("command", *arguments)


def test_recommend_prints_how_the_best_of_each_size_starts(say):
    asked = ("--model", "llama3_8b", "--cluster", "h100-80gb-dgx", "--gpus", "8,16")
    code, out, _ = say("recommend", *asked, "--no-rehearse", "--as", "megatron")
    assert code == 0
    lines = out.splitlines()[-2:]
    assert re.match(r"8 GPUs: (\S+=1 )?torchrun --nproc-per-node 8 pretrain_gpt.py", lines[0])
    assert re.match(r"16 GPUs: (\S+=1 )?torchrun --nproc-per-node 8 --nnodes 2", lines[1])
    assert "pretrain_gpt.py" in lines[1]


BEST = ("recommend", "--cluster", "h100-80gb-dgx", "--no-rehearse", "--model")


@pytest.mark.parametrize("program", programs())
def test_the_best_layouts_of_a_program_are_those_that_it_can_be_told(facts, program):
    best = facts(*BEST, "llama3_8b", "--gpus", "16", "--as", program)
    assert len(best) == 3
    for one in best:
        assert one["engine"] == one["start"]["program"] == program
        assert one["start"]["refused"] == []
        assert one["memory_margin"] > 0
        assert one["low"] < one["step_time_s"] < one["high"]


def test_a_model_that_no_engine_trains_gets_layouts_of_a_program_that_can(say, refusal):
    code, out, err = say(*BEST, "deepseek_v3", "--gpus", "512")
    assert code == 0
    assert err.splitlines()[0] == (
        "key_value_rank=512: no engine trains latent attention; a study with mode: predict predicts"
        " it; megatron and torchtitan can be told it: these are layouts of megatron"
    )
    assert re.search(r"^512 GPUs: .*--multi-latent-attention --kv-lora-rank 512", out, re.MULTILINE)
    told = refusal(*BEST, "gpt_oss_20b", "--gpus", "8", "--as", "megatron")
    assert told.endswith("; give --engine torchtitan\n")


OWN = """
{name}:
  source: a test
  command: [my-trainer, --layers, "{{num_layers}}", --tp, "{{tp}}", --batch, "{{micro_batch_size}}"]
  untold: the rest of the model
  flags:
    zero_stage: {{{stages}}}
  reads: {{step: step, fields: {{ms: '([0-9]+) ms'}}}}
"""


def test_programs_of_a_folder_are_searched_and_planned_by_their_names(
    say, facts, refusal, tmp_path
):
    (tmp_path / "config" / "studies").mkdir(parents=True)
    entries = [OWN.format(name="first", stages=""), OWN.format(name="second", stages="3: [--fsdp]")]
    (tmp_path / "config" / "trainers.yaml").write_text("".join(entries))
    for program, stages in (("first", {0}), ("second", {0, 3})):
        best = facts(*BEST, "llama3_8b", "--gpus", "64", "--as", program)
        assert {one["zero_stage"] for one in best} <= stages
        assert all(one["tp"] > 1 for one in best if one["zero_stage"] == 0)
        assert {(one["pp"], one["cp"], one["activation_checkpointing"]) for one in best} == {
            (1, 1, "none")
        }
        assert best[0]["start"]["shell"].startswith("my-trainer --layers 32 --tp ")
    for name in ("models", "clusters"):
        text = (PROJECT / "config" / f"{name}.yaml").read_text()
        (tmp_path / "config" / f"{name}.yaml").write_text(text)
    study = tmp_path / "config" / "studies" / "all.yaml"
    study.write_text(
        "title: All\nkind: strong\naxes: {model: llama3_8b, cluster: h100-80gb-dgx, "
        "world_size: 16, global_batch_size: 64, seq_length: 4096, zero_stage: 3, "
        "engine: [first, second, megatron, torch]}\n"
    )
    code, out, _ = say("plan", "all", "--no-rehearse", "--no-write")
    assert code == 0
    assert "first cannot be told zero_stage=3: config/trainers.yaml has no words for it" in out
    assert "3 points" in out
    study.write_text(study.read_text().replace("first", "1st"))
    told = refusal("plan", "all", "--no-write")
    assert "config/studies/all.yaml: axes.engine: unknown engine '1st': " in told


@pytest.fixture
def mine(tmp_path):
    """The folder of a model in the folder of each test."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(QWEN))


def test_the_shape_the_parameters_and_the_flops_are_printed(say, mine):
    code, out, _ = say("model", "mine")
    assert code == 0
    assert out.splitlines()[0] == (
        "qwen3-8.191b: 8,190,735,360 parameters, 8,190,735,360 for one token"
    )
    assert "num_kv_heads 8, head_dim 128" in out
    assert "FLOPs a token at 4,096 tokens a sequence" in out
    assert "left out" not in out
    assert "predict only" not in out


def test_the_json_says_what_is_left_out_and_what_is_only_predicted(facts, tmp_path):
    (tmp_path / "v3.json").write_text(json.dumps(RELEASED["deepseek-v3"][0]))
    told = facts("model", "v3.json", "--seq-length", "8192")
    assert told["total_params"] == 671_026_419_200
    assert told["seq_length"] == 8192
    assert told["shape"]["key_value_rank"] == 512
    assert told["left_out"] == ["num_nextn_predict_layers=1: the heads that predict further tokens"]
    assert "no engine trains latent attention" in told["predict_only"][0]


def test_a_refused_model_is_one_sentence_and_exit_code_2(refusal, mine, tmp_path):
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "nemotron_h"}')
    told = refusal("model", "mine")
    assert told.startswith("mine/config.json: model_type='nemotron_h': state-space layers")


def test_a_new_folders_first_study_is_about_the_model_given(say, mine, tmp_path, monkeypatch):
    code, _, _ = say("new", "sweeps", "--model", "mine")
    assert code == 0
    assert "model: ../qwen3-8.191b" in (tmp_path / "sweeps/config/studies/first.yaml").read_text()
    monkeypatch.chdir(tmp_path / "sweeps")
    assert say("model", "config/qwen3-8.191b")[0] == 0
    assert say("plan", "first", "--no-write")[0] == 0


def test_a_point_states_its_model_so_memory_takes_another_for_a_study_only(refusal, mine):
    told = refusal("memory", "p.json", "--model", "mine")
    assert "p.json states its model; give a study" in told
