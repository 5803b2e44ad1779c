"""Words of other tools: read as ours where they are known, left alone where they are not."""

import pytest

from scaling.cluster.hardware import GPUS
from scaling.foreign.layouts import WORDS
from scaling.foreign.spellings import SPELLINGS, column_names, gpu_meant, respelled


def test_every_spelling_is_in_small_letters_and_means_a_word_we_have():
    words = {**WORDS, "outcome": ("ok", "oom")}
    for column, spellings in SPELLINGS.items():
        assert set(spellings.values()) <= set(words[column])
        assert all(word == word.lower() and word not in words[column] for word in spellings)


def test_a_word_is_known_in_any_case_and_a_strange_one_stays_as_it_is():
    assert respelled("precision", "BF16-Mixed", {"bf16"}) == "bf16"
    assert respelled("precision", "bf17", {"bf16"}) == "bf17"
    assert respelled("outcome", "OK", {"ok"}) == "ok"
    assert respelled("precision", "FP8_CS", {"fp8"}) == "fp8"
    assert respelled("outcome", "Out of memory", {"oom"}) == "oom"


def test_heads_of_other_tools_are_ours_where_ours_are_not_there_too():
    assert column_names(["#GPUs", "GBS", "Seq-Len", "TP", "tokens/s"]) == [
        "world_size", "global_batch_size", "seq_length", "tp", "tokens/s",
    ]  # fmt: skip
    assert column_names(["seq_length", "seq_len", "SEQ_LENGTH"]) == [
        "seq_length", "seq_len", "SEQ_LENGTH",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("MI300X", "mi300x-192gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("DGX-H100", "h100-80gb"),
        ("H200", "h200-141gb"),
        ("h200 nvl", "h200-nvl-141gb"),
        ("GB300 NVL72", "gb300-288gb"),
        ("B200-192GB", "b200-180gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("A100", None),  # of 40 or of 80 GB
        ("H100 PCIe", None),
        ("h100-80gb-efs", None),
        ("", None),
    ],
)
def test_a_gpu_is_known_in_any_spelling_that_leaves_no_doubt(text, name):
    assert gpu_meant(text) == name


def test_every_gpu_means_itself():
    assert [gpu_meant(name.upper()) for name in GPUS] == list(GPUS)
