"""Findings of the three papers, as checks on our predictions of their studies.

A finding that the prediction contradicts is expected to fail here, strictly: docs/method.md says
why, and a change of the predictor that fixes or breaks one is noticed.
"""

import pytest

from scaling.report.page.page import write_report
from tests.conftest import PROJECT

pytestmark = pytest.mark.slow

H100_7B = "llama2_7b on h100-80gb-dgx, 4096 tokens"


def test_weak_scaled_fsdp_of_a_7b_clearly_loses_throughput_per_gpu(predicted):
    found = predicted("hardware_scaling")
    assert found["weak_scaling_loss", H100_7B]["verdict"] == "reproduced"


@pytest.mark.parametrize(
    "model",
    ["tinyllama_1b", "llama2_7b"],  # FSDP's gathers outlast compute at 0.79 of an H100's peak
)
def test_small_model_parallelism_overtakes_fsdp_at_scale_only(predicted, model):
    finding = predicted("hardware_scaling")[
        "model_parallelism_overtakes", f"{model} on h100-80gb-dgx, 4096 tokens"
    ]
    assert finding["verdict"] == "reproduced"


def test_fsdp_alone_is_not_overtaken_where_two_sequences_a_gpu_fit_it(predicted):
    finding = predicted("hardware_scaling")[
        "model_parallelism_overtakes", "llama2_13b on h100-80gb-dgx, 4096 tokens"
    ]
    assert finding["verdict"] == "not reproduced"
    assert "never ahead" in finding["observed"]


def test_h100_is_less_utilised_than_a100_at_the_same_point(predicted):
    for study in ("hardware_scaling", "hardware_scaling_strong"):
        verdicts = {
            record["verdict"]
            for (finding, _), record in predicted(study).items()
            if finding == "newer_gpus_are_less_used"
        }
        assert verdicts == {"reproduced"}


def test_micro_batch_1_gives_the_best_13b_layout(predicted):
    found = predicted("parallel_layouts")
    for size in (64, 128, 256):
        subject = f"llama_13b_v128k at 2048 tokens on {size}"
        assert found["micro_batch_of_one", subject]["verdict"] == "reproduced"
    assert found["headline", "llama_13b_v128k on 64 of a100-80gb-dgx"]["verdict"] == "reproduced"


@pytest.mark.parametrize("model", ["base", "large", "xl", "8b", "xxl"])
def test_zero_3_costs_more_time_and_less_memory_than_zero_2(predicted, model):
    found = predicted("zero_stages")
    subject = f"mt5_{model} on a100-80gb-dgx"
    # stage 3 keeps up to 1e9 gathered elements: all of a small model, so it saves none there
    small = model in ("base", "large")
    saves = "not reproduced" if small else "reproduced"
    assert found["stages_save_memory", subject]["verdict"] == saves
    assert found["stage_3_costs_time", subject]["verdict"] == "reproduced"


def test_a_13b_encoder_decoder_fits_a_node_with_stage_2(predicted):
    # the paper's software needed stage 3; the bytes of this engine's stage 2 are counted, and fit
    found = predicted("zero_stages")
    answer = found["the_largest_needs_stage_3", "mt5_xxl on 8 of a100-80gb-dgx"]
    assert answer["verdict"] == "not reproduced"
    assert answer["observed"] == "fits with stage 2, 3"


def test_mfu_falls_at_a_fixed_global_batch(predicted):
    # by a tenth: in the paper's direction, far from its 40 to under 15 % (docs/method.md)
    found = predicted("hardware_scaling_strong")
    assert found["fixed_batch_mfu_falls", H100_7B]["verdict"] == "reproduced"


@pytest.mark.parametrize(
    "study", ["hardware_scaling", "hardware_scaling_strong", "parallel_layouts", "zero_stages"]
)
def test_every_finding_has_numbers_or_a_reason_why_not(predicted, study):
    for (finding, subject), record in predicted(study).items():
        assert record["observed"], (finding, subject)
        assert (record["verdict"] == "not testable here") == (subject is None)
        assert record["source"] in (None, "predicted")


def test_the_largest_page_has_at_most_two_and_a_half_megabytes(predicted_study):
    page = write_report(predicted_study("hardware_scaling"), PROJECT / "reports", charts=False)
    assert page.stat().st_size <= 2_500_000
