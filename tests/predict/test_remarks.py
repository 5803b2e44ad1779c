"""Sentences beside recommendations: what they assume, and what the engine lacks."""

from scaling.predict.advise.remarks import remarks
from tests.shipped import MODELS


def said(**change):
    asked = {
        "model": "m", "shape": MODELS["llama3_405b"], "gpu": "h100-80gb", "gpus": [1024],
        "seq_length": 8192, "global_batch_size": None, "precision": "bf16",
        "framework": "scaling", "engine": "deepspeed",
    }  # fmt: skip
    return " ".join(remarks(**{**asked, **change}))


def test_the_assumed_batch_is_printed_and_a_huge_one_is_a_warning():
    assert "assumed: 1024 GPUs: 1,024 sequences, 8.39 M tokens a step" in said()
    huge = said(gpus=[16384], global_batch_size=16384, seq_length=4096)
    assert "warning: 16384 GPUs: 16,384 sequences, 67.1 M tokens a step" in huge
    assert "assumed" not in huge
    assert "warning" not in said()


def test_software_that_is_not_known_by_name_is_told_with_what_is_assumed():
    assert "framework megtron is not known by name; assumed: " in said(framework="megtron")
    assert "known by name" not in said(framework="Megatron-LM") + said()


def test_an_engine_without_interleaving_is_told_from_what_was_published():
    for count in (1024, 16384):
        lacking = f"engine deepspeed lacks what the published layout nearest to m on {count} GPUs"
        assert lacking in said(gpus=[count])
        assert "pipeline_schedule=interleaved: DeepSpeed has" in said(gpus=[count])
    assert "lacks" not in said(framework="NeMo v25.02")
    assert "lacks" not in said(shape=MODELS["llama2_13b"])  # nobody here published a model like it
    assert "interleaved" not in said(engine="torch")
