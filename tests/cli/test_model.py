"""`scaling model`, and the other verbs that take a config.json for a model."""

import json

import pytest

from tests.study.released import RELEASED

QWEN = RELEASED["qwen3-8b"][0]


@pytest.fixture(autouse=True)
def mine(tmp_path):
    """The folder of a model in the folder of each test."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(QWEN))


def test_the_shape_the_parameters_and_the_flops_are_printed(say):
    code, out, _ = say("model", "mine")
    assert code == 0
    assert out.splitlines()[0] == (
        "qwen3-8.191b: 8,190,735,360 parameters, 8,190,735,360 for one token"
    )
    assert "num_kv_heads 8, head_dim 128" in out
    assert "FLOPs a token at 4,096 tokens a sequence" in out
    assert "left out" not in out
    assert "predict only" not in out


def test_the_json_says_what_is_left_out_and_what_is_only_predicted(say, tmp_path):
    (tmp_path / "v3.json").write_text(json.dumps(RELEASED["deepseek-v3"][0]))
    code, out, _ = say("model", "v3.json", "--json", "--seq-length", "8192")
    facts = json.loads(out)
    assert code == 0
    assert facts["total_params"] == 671_026_419_200
    assert facts["seq_length"] == 8192
    assert facts["shape"]["key_value_rank"] == 512
    assert facts["left_out"] == [
        "num_nextn_predict_layers=1: the heads that predict further tokens"
    ]
    assert "no engine trains latent attention" in facts["predict_only"][0]


def test_a_refused_model_is_one_sentence_and_exit_code_2(say, tmp_path):
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "nemotron_h"}')
    code, out, err = say("model", "mine")
    assert (code, out) == (2, "")
    assert err.startswith("mine/config.json: model_type='nemotron_h': state-space layers")
    assert err.count("\n") == 1


def test_a_new_folders_first_study_is_about_the_model_given(say, tmp_path, monkeypatch):
    code, _, _ = say("new", "sweeps", "--model", "mine")
    assert code == 0
    assert "model: ../qwen3-8.191b" in (tmp_path / "sweeps/config/studies/first.yaml").read_text()
    monkeypatch.chdir(tmp_path / "sweeps")
    assert say("model", "config/qwen3-8.191b")[0] == 0
    assert say("plan", "first", "--no-write")[0] == 0


def test_a_point_states_its_model_so_memory_takes_another_for_a_study_only(say):
    code, _, err = say("memory", "p.json", "--model", "mine")
    assert code == 2
    assert "p.json states its model; give a study" in err
