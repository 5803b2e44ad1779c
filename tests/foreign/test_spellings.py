"""Words of other tools: read as ours where they are known, left alone where they are not."""

import pytest

from scaling.cluster.hardware import GPUS
from scaling.foreign.layouts import AXIS_WORDS
from scaling.foreign.spellings import (
    canonical_column,
    canonical_columns,
    canonical_word,
    find_gpu,
    find_model,
)
from tests.shipped import MODELS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("column", "cell", "word"),
    [
        ("precision", "bf16_with_fp8_current_scaling_mixed", "fp8"),
        ("precision", "bf16_with_mxfp8_mixed", "mxfp8"),
        ("precision", "FP8-MX", "mxfp8"),
        ("precision", "FP8 (tensorwise)", "fp8"),
        ("precision", "torch.bfloat16", "bf16"),
        ("precision", "nv-fp4", "nvfp4"),
        ("precision", "16-mixed", "fp16"),
        ("precision", "mxfp4", "mxfp4"),
        ("attention", "FlashAttention2", "flash2"),
        ("attention", "FlashAttention 1.0", "flash1"),
        ("attention", "flash_attention_3", "flash3"),
        ("attention", "flash_attn", "flash2"),
        ("attention", "Flash", "flash2"),
        ("attention", "flash22", "flash22"),
        ("attention", "sdpa", "flash2"),
        ("activation_checkpointing", "True", "full"),
        ("activation_checkpointing", "every_layer", "full"),
        ("activation_checkpointing", "disabled", "none"),
        ("activation_checkpointing", "norm, act", "selective"),
        ("activation_checkpointing", "every other layer", "every other layer"),  # is not full
        ("pipeline_schedule", "Interleaved1F1B", "interleaved"),
        ("optimizer_offload", "False", "none"),
        ("activation_checkpointing", "1.0", "full"),  # as pandas writes a switch
        ("outcome", "no OOM", "no OOM"),
        ("outcome", "OOM/crash", "oom_or_crash"),
        ("outcome", "OOM or crash", "oom_or_crash"),
        ("outcome", "torch.OutOfMemoryError", "oom"),
        ("outcome", "CUDA OOM", "oom"),
        ("outcome", "Passed", "ok"),
        ("outcome", "failed", "error"),
    ],
)
def test_a_cell_means_a_word_of_ours_or_stays_what_it_is(column, cell, word):
    words = {**AXIS_WORDS, "outcome": ("ok", "oom", "error", "oom_or_crash")}
    assert canonical_word(column, cell, words[column]) == word


@pytest.mark.parametrize(
    ("head", "column", "factor"),
    [
        ("Step time (ms)", "step_time_s", 1e-3),
        ("train/step_time (ms)", "step_time_s", 1e-3),
        ("perf/tokens_per_sec", "tokens_per_s", 1),
        ("state", "outcome", 1),
        ("num_processes", "world_size", 1),
        ("# HPUs", "world_size", 1),
        ("train_samples_per_second", "samples_per_s", 1),
        ("Time per batch (s)", "step_time_s", 1),
        ("Batch size", "batch_size", 1),
        ("train_batch_size", "global_batch_size", 1),
        ("Model size", "model", 1),
        ("Model parallelism", "model parallelism", 1),
        ("accelerator_model_name", "gpu", 1),
        ("zero_optimization_stage", "zero_stage", 1),
        ("Seq. length", "seq_length", 1),
        ("Grad. acc. steps", "gradient_accumulation_steps", 1),
        ("Global bsz", "global_batch_size", 1),
        ("ms/iter", "step_time_s", 1e-3),
        ("Checkpoint", "checkpoint", 1),  # a file
        ("time per step (hours)", "step_time_s", 3600.0),
        ("step_time_ms", "step_time_s", 1e-3),
        ("Time per Global Step (s)", "step_time_s", 1),
        ("elapsed time per iteration (ms)", "step_time_s", 1e-3),
        ("sec_per_step", "step_time_s", 1),
        ("iteration_time", "step_time_s", 1),
        ("tokens/sec/gpu", "tokens_per_s_per_gpu", 1),
        ("Tokens / second / GPU", "tokens_per_s_per_gpu", 1),
        ("GBS (tokens)", "tokens_per_step", 1),
        ("peak_memory_gib", "peak_memory_bytes", 2**30),
        ("Mem", "mem", 1),
        ("tensor_model_parallel_size", "tp", 1),
        ("pipeline parallelism", "pp", 1),
        ("number of GPUs", "world_size", 1),
        ("num_moe_experts", "num_experts", 1),
        ("Model TFLOPs/sec/GPU", "model tflops/sec/gpu", 1),
        ("it/s", "steps_per_s", 1),
        ("sec/it", "step_time_s", 1),
        ("step time (msec)", "step_time_s", 1e-3),
        ("Step time (µs)", "step_time_s", 1e-6),
        ("Sequence", "seq_length", 1),
        ("Sequence length (tokens)", "seq_length", 1),
        ("Micro batch size [sequences]", "micro_batch_size", 1),
        ("GBS (samples)", "global_batch_size", 1),
        ("Context size", "seq_length", 1),
        ("max_target_length", "seq_length", 1),
        ("Batch size per GPU", "local_batch_size", 1),
        ("accelerators_count", "world_size", 1),
        ("stepTimeMs", "step_time_s", 1e-3),
        ("NumParams", "numparams", 1),
        ("torch.compile", "compile", 1),
        ("Device", "gpu", 1),
        ("Tokens/s/chip", "tokens_per_s_per_gpu", 1),
        ("ZS", "zero_stage", 1),
        ("Context parallel size", "cp", 1),
        ("Sequence parallelism", "sequence_parallel", 1),
        ("sequence_parallel_size", "cp", 1),  # of DeepSpeed, whose 1 is not true
        ("Sequence parallel ways", "sequence parallel ways", 1),
        ("Total GPUs", "world_size", 1),
        ("nGPUs", "world_size", 1),
        ("No. of GPUs", "world_size", 1),
        ("Pipeline stages", "pp", 1),
        ("ktokens/s", "tokens_per_s", 1e3),
        ("Global batch (M tokens)", "tokens_per_step", 1e6),
        ("Pipeline Parallel (PP)", "pp", 1),
        ("# of GPUs", "world_size", 1),
        ("GPUs used", "world_size", 1),
        ("#GPU", "world_size", 1),
        ("GPU", "gpu", 1),
        ("LBS", "local_batch_size", 1),
        ("sharding_strategy", "fsdp", 1),
        ("Fused norm", "fused_norm", 1),
        ("n_embd", "hidden_size", 1),
        ("n_shared_experts", "shared_experts", 1),
        ("tie_word_embeddings", "tied_embeddings", 1),
    ],
)
def test_a_head_means_a_column_of_ours_in_its_unit(head, column, factor):
    assert canonical_column(head) == (column, factor)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "llama3_8b"),
        ("LLAMA3.1_405B", "llama3_405b"),
        ("Llama 3.2 1B", "llama3_1b"),
        ("DeepSeek V3 671B", "deepseek_v3"),
        ("Qwen3 MoE 30B", "qwen3_30b_a3b"),
        ("Qwen3-235B-A22B", "qwen3_235b_a22b"),
        ("GPT-3 175B", "gpt_175b"),
        ("openai/gpt-oss-20b", "gpt_oss_20b"),
        ("235B", "qwen3_235b_a22b"),  # a bare size that only one of them has
        ("70B", None),
        ("Llama3 70B 2-node", "llama3_70b"),
        ("Next-80B-A3B", None),
        ("llama3.1-405b-proxy", None),
        ("Llama 3.1 405B (proxy)", None),
        ("Llama 3 8B (4 layers)", None),
        ("Llama 3 8B (seq 8k)", "llama3_8b"),
        ("DeepSeekV3 (w/o MTP)", "deepseek_v3"),
        ("QWEN3_8B", "qwen3_8b"),
        ("Mixtral-8x7B-v0.1", "mixtral_8x7b"),
        ("llama31_8b", "llama3_8b"),
        ("llama33b", None),
        ("llama-13b", None),  # of Llama or Llama 2, of 32,000 or 128,000 words
        ("Qwen2.5 7B", "qwen2_7b"),
        ("Qwen2.5-VL-7B", None),
        ("Qwen/Qwen2.5-0.5B", "qwen2_0_5b"),
        ("meta-llama/Llama-4-Scout-17B-16E", "llama4_scout"),
        ("Llama-4-Maverick-17B-128E", "llama4_maverick"),
        ("Nemotron-4 340B", "nemotron4_340b"),
        ("deepseek-v2", "deepseek_v2"),
        ("DeepSeek-V2-Lite", "deepseek_v2_lite"),
        ("deepseek-v4", None),
        ("", None),
    ],
)
def test_a_model_is_known_in_any_spelling_that_leaves_no_doubt(text, name):
    assert find_model(text, MODELS) == name


def test_a_word_is_known_in_any_case_and_a_strange_one_stays_as_it_is():
    assert canonical_word("precision", "BF16-Mixed", {"bf16"}) == "bf16"
    assert canonical_word("precision", "bf17", {"bf16"}) == "bf17"
    assert canonical_word("outcome", "OK", {"ok"}) == "ok"
    assert canonical_word("precision", "FP8_CS", {"fp8"}) == "fp8"
    assert canonical_word("outcome", "Out of memory", {"oom"}) == "oom"


def test_heads_of_other_tools_are_ours_where_ours_are_not_there_too():
    heads = ["#GPUs", "GBS", "Seq-Len", "TP", "tokens/joule"]
    names = ["world_size", "global_batch_size", "seq_length", "tp", "tokens/joule"]
    assert [name for name, _ in canonical_columns(heads)] == names
    heads = ["seq_length", "seq_len", "SEQ_LENGTH", "step_time_s", "step_time_ms"]
    assert canonical_columns(heads) == [(head, 1.0) for head in heads]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("MI300X", "mi300x-192gb"),
        ("8x MI300X OAM", "mi300x-192gb"),
        ("4xGB200", "gb200-186gb"),
        ("System: DGX-H100, Precision: BF16", "h100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("DGX-H100", "h100-80gb"),
        ("H200", "h200-141gb"),
        ("h200 nvl", "h200-nvl-141gb"),
        ("GB300 NVL72", "gb300-288gb"),
        ("B200-192GB", "b200-180gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("A100", None),  # of 40 or of 80 GB
        ("H100 PCIe", "h100-pcie-80gb"),
        ("H100", "h100-80gb"),
        ("8x NVIDIA H100 NVL 94GB", "h100-nvl-94gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("A100 PCIe", None),  # of 40 or of 80 GB
        ("NVIDIA L40S", "l40s-48gb"),
        ("H200 PCIe", None),
        ("V100-16GB", None),  # another memory is another product
        ("H100 96GB", None),
        ("NVIDIA GH200 480GB", "gh200-96gb"),  # 480 GB are Grace's
        ("NVIDIA GH200 120GB", "gh200-96gb"),
        ("AMD Instinct MI300X VF", "mi300x-192gb"),  # of a virtual machine
        ("H100 80 GB", "h100-80gb"),
        ("a100_80g", "a100-80gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("NVIDIA B300 SXM6 AC", "b300-288gb"),
        ("h100-80gb-efs", None),
        ("", None),
    ],
)
def test_a_gpu_is_known_in_any_spelling_that_leaves_no_doubt(text, name):
    assert find_gpu(text) == name


def test_every_gpu_means_itself():
    assert [find_gpu(name.upper()) for name in GPUS] == list(GPUS)
