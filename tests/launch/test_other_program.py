"""Points that somebody else's program trains: its log becomes the row."""

import json
import random
import socket
import sys

import pytest
import yaml

from scaling.launch import measure
from scaling.launch.other_program import free_port
from scaling.launch.start.local import start_local
from tests.conftest import PROJECT
from tests.points import tiny_point
from tests.warm import warm_rank

pytestmark = pytest.mark.ranks

# Prints what torchtitan prints; the first argument is what happens at the end.
STAND_IN = """
import os, signal, sys, time
rank, steps = int(os.environ["RANK"]), int(sys.argv[2])
signal.signal(signal.SIGUSR1, lambda *_: print("asked for stacks", flush=True))
print("[titan] - Building device mesh with parallelism: pp=1, dp_shard=2, cp=1, tp=1", flush=True)
for n in range(1, steps + 1):
    if sys.argv[1] == "oom" and rank == 1 and n == 3:
        raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if sys.argv[1] == "raise" and rank == 1 and n == 3:
        raise ValueError("a bad sample")
    if sys.argv[1] == "kill" and rank == 1 and n == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "few" and n == 3:
        break
    if sys.argv[1] == "hang" and n == 3:
        time.sleep(1000)
    loss = "    nan" if sys.argv[1] == "nan" and n == 4 else f"{8 - n / 10:7.4f}"
    tps = 256 if n > 2 else 2
    print(f"[titan] 2026 - root - INFO - step: {n:2}  loss: {loss}  grad_norm:  1.0000  "
          f"memory:  1.50GiB(2.00%)  tps: {tps}  tflops: 1.00  mfu: 1.00%", flush=True)
    time.sleep(0.05)
time.sleep(1.5 * rank * (sys.argv[1] == "well"))
"""


@pytest.fixture
def measured(study, tmp_path, monkeypatch):
    """Measure a point with an entry of trainers.yaml that starts the stand-in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "stand_in.py").write_text(STAND_IN)

    def run(ends="well", command=None, entry="torchtitan", **more):
        entries = yaml.safe_load((PROJECT / "config" / "trainers.yaml").read_text())
        said = [sys.executable, str(tmp_path / "stand_in.py"), ends, "{steps}"]
        entries["own"] = entries[entry] | {"command": command or said}
        entries["own"] |= {} if command else {"untold": "all", "flags": {"attention": {"math": []}}}
        (tmp_path / "config" / "trainers.yaml").write_text(yaml.safe_dump({"own": entries["own"]}))
        point = tiny_point(engine="own", dp=2, zero_stage=0, warmup_steps=2, **more)
        return measure(study.write(point), study.row_path, start=start_local, hang_after_s=8.0)

    return run


def test_the_log_of_another_program_becomes_a_row(measured):
    row = measured()
    assert (row.outcome, row.error_message) == ("ok", None)
    # 8 sequences of 32 tokens over 2 ranks at 256 tokens/s each
    assert row.step_times_s == [0.5] * 10
    assert row.clock == "trainer's log"
    assert len(row.losses) == 12
    assert row.losses[0] == 7.9
    assert row.grad_norms == [1.0] * 12
    assert row.peak_memory_bytes == 3 * 2**29
    assert row.engine == "own"
    assert row.comm_s is None
    assert row.energy_j is None


@pytest.mark.parametrize(
    ("ends", "outcome", "message"),
    [
        ("oom", "oom", "rank 1: MemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("raise", "error", "rank 1: ValueError: a bad sample"),
        ("kill", "error", "rank 1 was killed by SIGKILL"),
        ("few", "error", "all ranks ended with exit code 0, and their log tells 2 of 12 steps"),
        ("nan", "error", "loss is not a number at step 3"),
        ("hang", "hang", "no rank got further for"),
    ],
)
def test_the_end_of_another_program_is_judged(measured, study, ends, outcome, message):
    row = measured(ends)
    assert "asked for stacks" not in study.log(0)
    assert row.outcome == outcome
    assert message in row.error_message
    assert row.step_times_s is None


def test_a_log_that_contradicts_the_point_is_an_error(measured, tmp_path):
    (tmp_path / "stand_in.py").write_text(STAND_IN.replace("tp=1", "tp=4"))
    row = measured()
    assert row.outcome == "error"
    assert row.error_message == "its log says tp=4, and the point has tp=1"


def test_a_program_that_is_not_there_is_a_failed_launch(measured):
    row = measured(command=["no-such-program", "{num_layers}"], entry="hf")
    assert row.outcome == "launch_failed"
    assert "no-such-program" in row.error_message


HF = """
import os, sys
import torch
from scaling.train import hf_trainer
torch.set_num_threads(1)
plain, seen, ends = hf_trainer._Tokens.__getitem__, [], sys.argv.pop(1)
def get(self, index):
    seen.append(index)
    if os.environ["RANK"] == "1" and len(seen) > 20 and ends == "oom":
        torch.empty(1 << 46)
    return plain(self, index)
hf_trainer._Tokens.__getitem__ = get
hf_trainer.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "ends", "outcome"),
    [
        ({"dp": 2, "zero_stage": 0}, "well", "ok"),
        ({"dp": 2, "zero_stage": 3, "activation_checkpointing": "full"}, "well", "ok"),
        ({"dp": 2, "zero_stage": 3}, "FSDP2", "ok"),
        ({"dp": 1, "zero_stage": 1}, "well", "ok"),
        ({"dp": 2, "zero_stage": 0}, "oom", "oom"),
    ],
)
def test_transformers_trainer_is_measured_and_judged(
    study, tmp_path, monkeypatch, layout, ends, outcome
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "faulty.py").write_text(HF)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    entries = yaml.safe_load((PROJECT / "config" / "trainers.yaml").read_text())
    if ends == "FSDP2":
        entries["hf"]["flags"]["zero_stage"] = {3: ["--fsdp", "3"]}
    arguments = entries["hf"]["command"][3:]
    # test_layouts starts it from nothing, which takes longer than all that it does here
    program = [warm_rank(), str(tmp_path / "faulty.py")]
    entries["hf"]["command"] = [*program, ends, *arguments]
    (tmp_path / "config" / "trainers.yaml").write_text(yaml.safe_dump({"hf": entries["hf"]}))
    point = tiny_point(engine="hf", warmup_steps=2, **layout)
    row = measure(study.write(point), study.row_path, start=start_local, hang_after_s=60.0)
    assert row.outcome == outcome
    if outcome == "ok":
        assert len(row.step_times_s) == 10
        assert len(row.losses) == 12
        assert 4 < row.losses[0] < 8
        assert 0 < row.step_time_s < 5
        assert 0 < row.startup_s < 60
    else:
        assert "rank 1" in row.error_message


# A user's loop around megatron-core, with what it takes from CUDA without asking; it prints
# Megatron-LM's lines.
MEGATRON = """
import argparse, contextlib, time
import torch, torch.distributed as dist
torch.cuda.current_device = lambda: torch.device("cpu")
def on_cpu(make):
    def made(*shape, device=None, **more):
        return make(*shape, device="cpu" if str(device).startswith("cuda") else device, **more)
    return made
torch.zeros, torch.empty, torch.tensor = map(on_cpu, (torch.zeros, torch.empty, torch.tensor))
import megatron.core.tensor_parallel.random as random
random.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()
from megatron.core import parallel_state as state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
parser = argparse.ArgumentParser()
for name in ("num-layers", "hidden-size", "num-attention-heads", "num-query-groups", "kv-channels",
             "ffn-hidden-size", "vocab-size", "seq-length", "micro-batch-size",
             "global-batch-size", "train-iters", "tensor-model-parallel-size"):
    parser.add_argument(f"--{name}", type=int)
asked, _ = parser.parse_known_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
state.initialize_model_parallel(tensor_model_parallel_size=asked.tensor_model_parallel_size)
torch.manual_seed(1)
config = TransformerConfig(
    num_layers=asked.num_layers, hidden_size=asked.hidden_size,
    num_attention_heads=asked.num_attention_heads, num_query_groups=asked.num_query_groups,
    kv_channels=asked.kv_channels, ffn_hidden_size=asked.ffn_hidden_size,
    tensor_model_parallel_size=asked.tensor_model_parallel_size, use_cpu_initialization=True,
    hidden_dropout=0.0, attention_dropout=0.0, gradient_accumulation_fusion=False,
    bias_dropout_fusion=False, masked_softmax_fusion=False, gated_linear_unit=True,
    activation_func=torch.nn.functional.silu, add_bias_linear=False, apply_rope_fusion=False,
    bias_activation_fusion=False)
model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=asked.vocab_size,
                 max_sequence_length=asked.seq_length, position_embedding_type="rope",
                 share_embeddings_and_output_weights=False)
optimizer, replicas = torch.optim.AdamW(model.parameters()), state.get_data_parallel_world_size()
mask = torch.ones(1, 1, asked.seq_length, asked.seq_length).triu(1).bool()
place = torch.arange(asked.seq_length).expand(asked.micro_batch_size, -1)
steps = asked.train_iters
for step in range(1, steps + 1):
    dist.barrier()
    started, loss = time.perf_counter(), 0.0
    optimizer.zero_grad()
    for _ in range(rounds := asked.global_batch_size // asked.micro_batch_size // replicas):
        tokens = (place + step).remainder(asked.vocab_size)
        out = model(tokens, place, mask, labels=tokens).mean() / rounds
        out.backward()
        loss += out.item()
    for weight in model.parameters() if replicas > 1 else ():
        dist.all_reduce(weight.grad, group=state.get_data_parallel_group())
    optimizer.step()
    took = 1e3 * (time.perf_counter() - started)
    if dist.get_rank() == dist.get_world_size() - 1:
        print(f" iteration {step:8d}/{steps:8d} | elapsed time per iteration (ms): {took:.1f} | "
              f"global batch size: {asked.global_batch_size} | lm loss: {loss:.6E} | "
              "grad norm: 1.000 |", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{"tp": 2, "dp": 1}, {"dp": 2}])
def test_megatron_core_is_measured_where_it_is_installed(study, tmp_path, monkeypatch, layout):
    pytest.importorskip("megatron.core")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "loop.py").write_text(MEGATRON)
    entry = yaml.safe_load((PROJECT / "config" / "trainers.yaml").read_text())["megatron"]
    entry["command"] = [sys.executable, str(tmp_path / "loop.py"), *entry["command"][2:]]
    entry["flags"]["precision"] = {"fp32": []}
    (tmp_path / "config" / "trainers.yaml").write_text(json.dumps({"megatron": entry}))
    point = tiny_point(engine="megatron", zero_stage=0, warmup_steps=2, **layout)
    row = measure(study.write(point), study.row_path, start=start_local, hang_after_s=60.0)
    assert (row.outcome, row.error_message) == ("ok", None)
    assert len(row.step_times_s) == 10
    assert row.clock == "trainer's log"
    assert 4 < row.losses[0] < 8


def test_the_ranks_of_a_program_meet_at_a_port_that_nobody_else_uses(monkeypatch):
    with socket.socket() as other:
        other.bind(("", 0))
        taken = other.getsockname()[1]
        drawn = iter((taken, free_port()))
        monkeypatch.setattr(random, "randint", lambda *_: next(drawn))
        assert free_port() != taken
