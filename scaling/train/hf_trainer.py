"""One rank of transformers' Trainer on a decoder with random weights: the entry `hf` starts it.

Started with torchrun's variables. Prints one dict a step, with the seconds between two steps' ends.
"""

import argparse
import sys
import tempfile
import time
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class _Lines(TrainerCallback):
    """Prints every step's time, loss and gradient norm."""

    ended = 0.0
    seconds: float | None = None

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.ended = self.ended or time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds, self.ended = now - self.ended, now

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if state.is_world_process_zero and logs and "loss" in logs:
            said = {"step": state.global_step, "step_time_s": f"{self.seconds:.6f}"}
            said |= {name: logs[name] for name in ("loss", "grad_norm")}
            sys.stdout.write(f"{said}\n")
            sys.stdout.flush()


class _Tokens(Dataset[dict[str, torch.Tensor]]):
    """Sequences of equal steps, which a model can learn."""

    def __init__(self, length: int, vocabulary: int) -> None:
        self.length, self.vocabulary = length, vocabulary

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start, stride = index * 7919, index % 8 + 1
        tokens = (start + stride * torch.arange(self.length)) % self.vocabulary
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser()
    for name in ("layers", "hidden", "heads", "kv-heads", "head-dim", "ffn", "vocab", "seq-length"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("micro-batch-size", "accumulation", "steps", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--tied", choices=("true", "false"), default="false")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="bf16")
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="sdpa")
    parser.add_argument("--deepspeed", help="its configuration file")
    parser.add_argument("--fsdp", choices=("2", "3"))
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args()
    torch.manual_seed(asked.seed)
    config = LlamaConfig(
        num_hidden_layers=asked.layers,
        hidden_size=asked.hidden,
        num_attention_heads=asked.heads,
        num_key_value_heads=asked.kv_heads,
        head_dim=asked.head_dim,
        intermediate_size=asked.ffn,
        vocab_size=asked.vocab,
        max_position_embeddings=asked.seq_length,
        tie_word_embeddings=asked.tied == "true",
        use_cache=False,
    )
    config._attn_implementation = asked.attention
    more: dict[str, Any] = {"deepspeed": asked.deepspeed}
    if asked.fsdp:
        more["fsdp"] = "full_shard" if asked.fsdp == "3" else "shard_grad_op"
        more["fsdp_config"] = {
            "version": 2,
            "reshard_after_forward": asked.fsdp == "3",
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        }
    if not torch.cuda.is_available():
        more |= {"use_cpu": True, "ddp_backend": "gloo"}
        import deepspeed

        # without this DeepSpeed compiles a shared-memory all-reduce for inference in each rank
        vars(deepspeed.ops)["__compatible_ops__"] = {"deepspeed_shm_comm": False}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=asked.steps,
            per_device_train_batch_size=asked.micro_batch_size,
            gradient_accumulation_steps=asked.accumulation,
            learning_rate=1e-5,
            lr_scheduler_type="constant",
            logging_steps=1,
            logging_nan_inf_filter=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            bf16=asked.precision == "bf16",
            fp16=asked.precision == "fp16",
            gradient_checkpointing=asked.checkpointing,
            torch_compile=asked.compile,
            seed=asked.seed,
            **more,
        )
        trainer = Trainer(
            model=LlamaForCausalLM(config),
            args=arguments,
            train_dataset=_Tokens(asked.seq_length, asked.vocab),
            callbacks=[_Lines()],
        )
        trainer.remove_callback(PrinterCallback)  # ours prints the same and more
        trainer.train()


if __name__ == "__main__":
    main()
