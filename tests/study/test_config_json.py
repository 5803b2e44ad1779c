"""A config.json is counted as transformers counts it, or refused in one sentence."""

import dataclasses
import json
import random

import pytest

from scaling.errors import InputError
from scaling.layout.engines import engine_refusals
from scaling.layout.layout import Layout
from scaling.study.config_json import catalogue, config_path, model_named, read_config
from scaling.study.grid import expand_grid
from scaling.study.load import load_models, load_study
from tests.conftest import PROJECT, STUDY
from tests.study.released import RELEASED, SMALL

CATALOGUE = load_models(PROJECT / "config" / "models.yaml")
# Parts of the release that entries of models.yaml lack, as their `source` states.
DEPARTURES = {
    "qwen2": {"query_key_value_biases": False},
    "mistral": {"window": 0, "windowed_layers": 0},
    "deepseek_v3": {"router_bias": False},
    "kimi_k2": {"router_bias": False},
    "glm4_moe": {"query_key_value_biases": False, "router_bias": False},
}


@pytest.fixture
def written(tmp_path):
    def write(config, folder="model"):
        path = tmp_path / folder / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return path

    return write


def counted_by_transformers(config):
    """Parameters and balancing biases of transformers' own class, which holds no data."""
    import torch  # seconds, which collecting these tests need not take
    import transformers

    kind = {"kimi_k2": "deepseek_v3", "llama4": "llama4_text"}.get(config["model_type"])
    config = {**config.get("text_config", config)} | ({"model_type": kind} if kind else {})
    made = transformers.AutoConfig.for_model(**config)
    is_t5 = config["model_type"] in ("t5", "mt5")
    auto = transformers.AutoModelForSeq2SeqLM if is_t5 else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(made)
    biases = [b for name, b in model.named_buffers() if "e_score_correction_bias" in name]
    # transformers 5 ties the head of every t5, also where the released weights have one
    untied = is_t5 and not config.get("tie_word_embeddings", True)
    heads = [model.lm_head.weight] if untied else []
    return sum(each.numel() for each in (*model.parameters(), *biases, *heads))


@pytest.mark.slow
@pytest.mark.parametrize("name", RELEASED)
def test_a_released_config_has_the_parameters_of_transformers(name, written):
    config, total, _ = RELEASED[name]
    shape = read_config(written(config)).shape
    assert shape.total_params == counted_by_transformers(config)
    assert total in (None, shape.total_params)


@pytest.mark.slow
@pytest.mark.parametrize("family", SMALL)
def test_small_configs_have_the_parameters_of_transformers(family, written):
    chosen = random.Random(family)
    for _ in range(4):
        config = SMALL[family](chosen) | {"model_type": family}
        counted = read_config(written(config)).shape.total_params
        assert counted == counted_by_transformers(config), config


def refusal_of(path):
    try:
        read_config(path)
    except InputError as error:
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("family", SMALL)
def test_an_absent_key_has_the_default_of_transformers_or_is_refused(family, written):
    config = SMALL[family](random.Random(family)) | {"model_type": family}
    for key in {*config} - {"model_type", "pad_token_id"}:
        less = {name: value for name, value in config.items() if name != key}
        if (said := refusal_of(written(less))) is None:
            counted = read_config(written(less)).shape.total_params
            assert counted == counted_by_transformers(less), key
        else:
            assert f"{key}: is missing" in said


def test_a_window_of_no_tokens_is_none(written):
    mistral = {**LLAMA, "model_type": "mistral", "sliding_window": 0}
    assert read_config(written(mistral)).shape == read_config(written(LLAMA)).shape


def test_a_null_of_the_text_part_is_no_missing_key(written):
    """Kimi-VL's text part has no low rank for its queries: a null."""
    text = SMALL["deepseek_v3"](random.Random(0)) | {"q_lora_rank": None}
    text["model_type"] = "deepseek_v3"
    found = read_config(written({"model_type": "kimi_vl", "text_config": text}))
    assert found.shape == read_config(written(text)).shape
    assert found.shape.query_rank == 0


def test_every_family_is_tried_small_and_in_full():
    families = set(catalogue()["families"])
    inner = {name for name in families if name.endswith("_text") and name != "llama4_text"}
    full = {config.get("text_config", config)["model_type"] for config, *_ in RELEASED.values()}
    assert families - inner == set(SMALL) == full


@pytest.mark.parametrize("name", [name for name in RELEASED if RELEASED[name][2]])
def test_an_entry_of_models_yaml_is_the_released_model(name, written):
    config, _, entry = RELEASED[name]
    found = read_config(written(config)).shape
    lacks = DEPARTURES.get(config["model_type"], {}) if CATALOGUE[entry] != found else {}
    assert CATALOGUE[entry] == dataclasses.replace(found, **lacks)
    assert not lacks or ", without " in source_of(entry)


def source_of(entry):
    lines = (PROJECT / "config" / "models.yaml").read_text().splitlines()
    return next(one for one in lines if one.startswith(f"{entry}:")).partition("source:")[2]


LLAMA = RELEASED["llama-3.1-8b"][0]
QWEN3 = RELEASED["qwen3-8b"][0]
KIMI = RELEASED["kimi-k2"][0]
WRONG = {
    "hybrid": ({"model_type": "qwen3_5"}, "model_type='qwen3_5': linear attention"),
    "state space": ({"model_type": "nemotron_h"}, "model_type='nemotron_h': state-space layers"),
    "sparse": ({"model_type": "deepseek_v32"}, "model_type='deepseek_v32': sparse attention"),
    "falcon": ({"model_type": "falcon_h1"}, "model_type='falcon_h1': state-space layers"),
    "kimi": ({"model_type": "kimi_k3"}, "model_type='kimi_k3': linear attention"),
    "glm": ({"model_type": "glm5"}, "model_type='glm5': sparse attention"),
    "blocks": ({"model_type": "nemotron-nas"}, "model_type='nemotron-nas': blocks that differ"),
    "gemma": ({"model_type": "gemma3_text"}, "model_type='gemma3_text': four norms a layer"),
    "unknown": ({"model_type": "exaone"}, "model_type='exaone': cannot be counted; the families"),
    "no family": ({"hidden_size": 8}, "model_type: is missing; the families are llama,"),
    "half a text part": (
        {"text_config": LLAMA | {"vocab_size": None}},
        "text_config.vocab_size: is missing",
    ),
    "an indexer": ({**KIMI, "index_topk": 2048}, "index_topk=2048: sparse attention"),
    "a block's key": ({**LLAMA, "block_configs": [{}]}, "block_configs=[{}]: blocks that differ"),
    "linear layers": (
        {**QWEN3, "layer_types": ["linear_attention"] * 36},
        "layer_types=",
    ),
    "mlp biases": ({**LLAMA, "mlp_bias": True}, "mlp_bias=True: only false can be counted here"),
    "no size": ({**LLAMA, "hidden_size": None}, "hidden_size: is missing"),
    "text": ({**LLAMA, "hidden_size": "4096"}, "hidden_size='4096': must be a whole number"),
    "nothing": ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers=0: must be at least 1"),
    "too much": ({**LLAMA, "intermediate_size": 2**62}, "intermediate_size=4611686018427387904"),
    "heads": (
        {**LLAMA, "num_key_value_heads": 5},
        "num_attention_heads=32 is not divisible by num_key_value_heads=5",
    ),
    "a layer list": ({**QWEN3, "layer_types": 3}, "layer_types=3: must be a list of 36 kinds"),
    "an inner family": (
        {"model_type": "x", "text_config": {"model_type": "qwen3_next"}},
        "text_config.model_type='qwen3_next': linear attention",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_uncountable_models_are_refused_by_their_key(name, written):
    config, sentence = WRONG[name]
    path = written(config)
    with pytest.raises(InputError) as told:
        read_config(path)
    assert str(told.value).startswith(f"{path}: {sentence}")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "not valid JSON"),
        ("[" * 200_000, "not valid JSON"),
        ("[1]", r"is \[1\]; it must hold keys and values"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
        (" " * 2_000_001, "has more than 2,000,000 bytes"),
    ],
)
def test_a_file_that_is_no_config_is_one_sentence(text, sentence, written):
    with pytest.raises(InputError, match=sentence):
        read_config(written(text))


def test_what_is_left_out_of_a_model_is_said(written):
    said = read_config(written(RELEASED["llama-4-maverick"][0])).left_out
    assert said == (
        "vision_config: only the text part is counted",
        "attention_chunk_size=8192: here all layers attend to all tokens",
        "the place of 24 dense layers between others: here they are the first",
    )
    assert read_config(written(RELEASED["deepseek-v3"][0])).left_out == (
        "num_nextn_predict_layers=1: the heads that predict further tokens",
    )
    assert read_config(written(LLAMA)).left_out == ()


@pytest.mark.parametrize(
    ("name", "seq_length", "part"),
    [
        ("llama-3.1-8b", 4096, None),
        ("qwen3-30b-a3b", 4096, None),
        ("mistral-7b", 4096, None),  # its window of 4,096 tokens cuts nothing off
        ("mistral-7b", 8192, "window=4096: no engine trains attention over a window"),
        ("qwen2.5-7b", 4096, "query_key_value_biases=true: no engine trains"),
        ("olmo-2-13b", 4096, "whole_query_key_norm=true: no engine trains a norm over all heads"),
        ("deepseek-v3", 4096, "key_value_rank=512: no engine trains latent attention"),
    ],
)
def test_what_no_engine_trains_is_predicted_only(name, seq_length, part, written):
    shape = read_config(written(RELEASED[name][0])).shape
    reasons = list(engine_refusals(shape, Layout(seq_length=seq_length)))
    assert len(reasons) == (part is not None)
    assert not reasons or reasons[0].startswith(part)
    assert not list(engine_refusals(shape, Layout(seq_length=seq_length), predicted=True))


def test_a_path_means_a_file_its_folder_or_a_name_in_the_hub_cache(tmp_path, written, monkeypatch):
    file = written(LLAMA)
    assert config_path("model", tmp_path) == config_path("model/config.json", tmp_path) == file
    assert config_path("absent", tmp_path) is None
    assert config_path("x" * 5000, tmp_path) is None
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    cached = tmp_path / "hub" / "models--meta-llama--Llama-3.1-8B"
    for revision in ("aaa", "bbb"):
        written(LLAMA).replace(
            (cached / "snapshots" / revision).mkdir(parents=True)
            or cached / "snapshots" / revision / "config.json"
        )
    found = config_path("meta-llama/Llama-3.1-8B", tmp_path)
    assert found == cached / "snapshots" / "aaa" / "config.json"
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("bbb")
    assert config_path("meta-llama/Llama-3.1-8B", tmp_path).parent.name == "bbb"


def test_a_models_name_is_in_the_file_or_is_its_family_and_size(written):
    assert read_config(written(LLAMA)).name == "llama-8.03b"
    named = {**LLAMA, "_name_or_path": "/home/me/check points/My Model!"}
    assert read_config(written(named)).name == "My-Model-"
    assert read_config(written({**named, "name": "mine"})).name == "mine"


def small(**more):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}
    sizes |= {"intermediate_size": 128, "vocab_size": 256, "num_hidden_layers": 4}
    return {"model_type": "llama", "tie_word_embeddings": True, **sizes, **more}


def test_points_do_not_know_the_path_of_their_config(config, write_study, written):
    written(small()).replace(config / "studies" / "config.json")
    points = []
    for text in ("config.json", ".", str(config / "studies" / "config.json")):
        write_study("one", axes={**STUDY["axes"], "model": text})
        points.append(expand_grid(load_study("one", config)).points)
    assert points[0] == points[1] == points[2]
    assert {point.model for point in points[0]} == {"llama-0.1808m"}
    write_study("one", axes={**STUDY["axes"], "model": [".", "mini", "config.json"]})
    assert len(load_study("one", config).axes["model"]) == 2


def test_two_models_of_one_name_are_refused(written, tmp_path):
    written(small(name="tiny"))
    with pytest.raises(
        InputError, match=r"its model is called tiny, as another one; give it a key"
    ):
        model_named("model", CATALOGUE, tmp_path)
    assert model_named("tiny", CATALOGUE, tmp_path) is None
