"""Logs of older and newer releases, of restarts and of launchers that label each line."""

import pytest
import typer
from typer.testing import CliRunner

from scaling.cli.tables import convert
from scaling.errors import InputError
from scaling.foreign.logs.tools import read_logs
from tests.foreign.test_logs import MEGATRON, MLLOG, NCCL, NEMO_BAR, TITAN, event


@pytest.fixture
def rows_of(tmp_path):
    """The rows of a text as a log of a tool."""

    def rows(tool, text):
        (tmp_path / "a.log").write_bytes(text.encode())
        return read_logs([tmp_path / "a.log"], tool, {"cluster": "h100-80gb-dgx"}).to_pylist()

    return rows


def labelled(label, text):
    return "".join(f"{label}{line}\n" for line in text.splitlines())


def changed(**arguments):
    """The Megatron log with other arguments, or more of them."""
    text = MEGATRON
    for name, value in arguments.items():
        before = next((line for line in text.splitlines() if line.startswith(f"  {name} ")), None)
        line = f"  {name} ....... {value}"
        end = "-------------------- end"
        text = text.replace(before, line) if before else text.replace(end, f"{line}\n{end}", 1)
    return text


def iteration(batch, ms, unit="ms"):
    return (
        f" iteration        9/     100 | consumed samples: 9 | elapsed time per iteration "
        f"({unit}): {ms} | learning rate: 1.5E-06 | global batch size: {batch:5d} | lm loss: 1 |\n"
    )


@pytest.mark.parametrize(
    "label", ["12: ", "[default0]:", "[rank7]: ", "[1,0]<stdout>:", "\x1b[31m"]
)
@pytest.mark.parametrize(
    ("tool", "text"),
    [("megatron", MEGATRON), ("torchtitan", TITAN), ("nccl-tests", NCCL), ("mlperf", MLLOG)],
)
def test_labels_of_launchers_and_colours_change_nothing(rows_of, tool, text, label):
    assert rows_of(tool, labelled(label, text)) == rows_of(tool, text)
    assert rows_of(tool, text.replace("\n", "\r\n")) == rows_of(tool, text)


def test_while_the_batch_grows_only_steps_of_the_last_one_count(rows_of):
    arguments = MEGATRON.split(" [2026", 1)[0]
    ramp = "".join(iteration(64, 3000) for _ in range(9))
    (row,) = rows_of("megatron", arguments + ramp + iteration(512, 27000) + iteration(512, 26000))
    assert (row["global_batch_size"], row["step_time_s"]) == (512, 26.0)
    line = "global_batch_size: {} | global_step: {} | train_step_timing in s: {}\n"
    steps = [(32, n, 4.0) for n in range(9)] + [(128, 9, 17.0), (128, 10, 16.0)]
    (row,) = rows_of("nemo", "".join(line.format(*step) for step in steps))
    assert (row["global_batch_size"], row["step_time_s"]) == (128, 16.0)


def test_a_run_that_ends_out_of_memory_has_no_step_time(rows_of):
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    for tool, text in (("megatron", MEGATRON), ("nemo", NEMO_BAR), ("torchtitan", TITAN)):
        (row,) = rows_of(tool, text + oom)
        assert row["outcome"] == "oom"
        assert not {"step_time_s", "peak_memory_bytes"} & {n for n, v in row.items() if v}
    assert rows_of("nemo", oom + NEMO_BAR)[0]["outcome"] == "ok"  # as after a restart


@pytest.mark.parametrize(
    ("tool", "text", "stated"),
    [
        ("megatron", MEGATRON + changed(tensor_model_parallel_size=4), "tensor_model_parallel_size "
         "as 8 and as 4"),
        ("torchtitan", TITAN + TITAN.replace("tp=2", "tp=4"), "the device mesh as pp=1"),
        ("mlperf", MLLOG + MLLOG.replace("1152", "768"), "global_batch_size as 1152 and as 768"),
    ],
)  # fmt: skip
def test_runs_of_different_layouts_in_one_log_are_refused(rows_of, tool, text, stated):
    with pytest.raises(InputError, match=f"it states {stated}.*: give each run its own log"):
        rows_of(tool, text)


def test_a_restart_with_the_same_arguments_is_one_row(rows_of):
    (row,) = rows_of("megatron", MEGATRON + MEGATRON)
    assert row["step_time_s"] == pytest.approx(26.3)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"virtual_pipeline_model_parallel_size": None}, {"virtual_stages": 1}),
        ({"fp4": "e2m1", "fp4_recipe": "nvfp4"}, {"precision": "nvfp4"}),
        ({"fp8": None, "fp8_hybrid": True}, {"precision": "fp8"}),
        ({"use_torch_fsdp2": True}, {"zero_stage": 3}),
        (
            {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"},
            {"zero_stage": 3},
        ),
        ({"group_query_attention": False}, {"num_kv_heads": 64}),
        (
            {"multi_latent_attention": True, "kv_lora_rank": 512, "qk_head_dim": 128,
             "q_lora_rank": 1536, "qk_pos_emb_head_dim": 64, "v_head_dim": 128},
            {"key_value_rank": 512, "query_rank": 1536, "rotary_head_dim": 64,
             "value_head_dim": 128, "head_dim": 128},
        ),
        (
            {"num_experts": 8, "moe_ffn_hidden_size": 2048, "moe_layer_freq": "[0, 0, 1, 1]",
             "moe_shared_expert_intermediate_size": 4096},
            {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 2048,
             "shared_experts": 2, "dense_layers": 2},
        ),
        ({"num_experts": 8}, {"expert_ffn_hidden_size": 28672, "dense_layers": 0}),
        # no columns of ours for experts in every second layer: such a row is not predicted
        ({"num_experts": 8, "moe_layer_freq": 2}, {"num_experts": 8, "experts_per_token": None}),
        ({"hybrid_override_pattern": "M*-"}, {"attention_kind": "hybrid_override_pattern"}),
        (
            {"recompute_granularity": "full", "recompute_method": "block",
             "recompute_num_layers": 1},
            {"activation_checkpointing": None},
        ),
        (
            {"recompute_granularity": "full", "recompute_method": "block",
             "recompute_num_layers": 4},
            {"activation_checkpointing": "full"},
        ),
        ({"optimizer_cpu_offload": True}, {"optimizer_offload": "cpu"}),
        ({"qk_layernorm": True}, {"query_key_norm": True}),
        ({"attention_backend": "AttnBackend.fused"}, {"attention": "cudnn"}),
        ({"deepspeed": True, "zero_stage": "1.0"}, {"framework": "Megatron-DeepSpeed",
                                                    "zero_stage": 1}),
    ],
)  # fmt: skip
def test_megatrons_arguments_say_what_the_layers_are(rows_of, arguments, facts):
    (row,) = rows_of("megatron", changed(**arguments))
    assert {name: row.get(name) for name in facts} == facts


def test_a_megatron_log_of_2021_states_its_checkpointing_and_kernel(rows_of):
    arguments = """\
  checkpoint_activations .......................... True
  fp16 ............................................ True
  bf16 ............................................ False
  num_layers ...................................... 96
  masked_softmax_fusion ........................... True
"""
    (row,) = rows_of("megatron", arguments + iteration(8, 12.5, unit="s"))
    facts = ("activation_checkpointing", "precision", "attention", "tied_embeddings")
    assert [row[name] for name in facts] == ["full", "fp16", "fused_softmax", True]
    assert row["step_time_s"] == 12.5


def test_a_log_of_megatron_bridge_is_called_so(rows_of):
    line = "Step Time : 26.10s GPU utilization: 450.1MODEL_TFLOP/s/GPU\n"
    assert rows_of("megatron", line + iteration(8, 1))[0]["framework"] == "Megatron-Bridge"


def test_a_progress_bar_that_is_drawn_again_is_the_same_step(rows_of):
    frames = [("0.000", 30.1)] * 9 + [("1.000", 8.85), ("1.000", 8.85), ("2.000", 8.83)]
    bar = "\r".join(f"Epoch 0: global_step={n}, train_step_timing in s={t}]" for n, t in frames)
    assert rows_of("nemo", bar)[0]["step_time_s"] == pytest.approx(8.84)


def test_numbers_with_exponents_are_read_whole(rows_of):
    text = "peak_memory_usage: 6.2e+10 | train_step_timing in s: 1.234e+03\n"
    (row,) = rows_of("nemo", text)
    assert (row["step_time_s"], row["peak_memory_bytes"]) == (1234, 62_000_000_000)


def test_a_number_that_no_table_holds_is_one_sentence(rows_of):
    with pytest.raises(InputError, match=r"hidden_size=9+ is larger than a table holds"):
        rows_of("megatron", changed(hidden_size="9" * 25))


def test_what_else_stands_in_an_mlperf_file_is_passed_over(rows_of):
    text = event("global_batch_size", 64).rstrip() + "Epoch 0\n" + event("tracked_stats", None)
    text += event("tracked_stats", {"train_step_time": None, "throughput": "fast"})
    text += event("tracked_stats", {"throughput": 16.0})
    assert rows_of("mlperf", text)[0]["step_time_s"] == 4.0
    with pytest.raises(InputError, match="global_batch_size=many is no whole number"):
        rows_of("mlperf", event("global_batch_size", "many"))


def test_an_older_mesh_of_torchtitan_and_its_words_are_read(rows_of):
    mesh = "Building 3-D device mesh with ['dp_replicate', 'dp_shard', 'tp'], [2, 16, 2]"
    older = TITAN.replace(TITAN[TITAN.index("Building device") : TITAN.index("\n")], mesh)
    assert rows_of("torchtitan", older.replace("tps", "wps")) == rows_of("torchtitan", TITAN)
    said = TITAN.replace("Applied selective", "Applied memory_budget")
    said = said.replace("Compiling each", "Swapped to Float8Linear layers. Compiling each")
    (row,) = rows_of("torchtitan", said)
    assert "activation_checkpointing" not in row
    assert row["precision"] == "fp8"


def test_each_of_several_nccl_tests_has_its_own_name_and_ranks(rows_of):
    probes = rows_of("nccl-tests", NCCL + NCCL.replace("all_reduce_perf", "all_gather_perf"))
    assert [probe["kind"] for probe in probes] == ["all_reduce"] * 3 + ["all_gather"] * 3
    assert {probe["ranks"] for probe in probes} == {4}
    nameless = NCCL[NCCL.index("# nThread") :]
    with pytest.raises(InputError, match="a test is named by none of"):
        rows_of("nccl-tests", NCCL + nameless)


def test_groups_that_run_at_once_and_wrong_results_are_told(rows_of):
    split = NCCL.replace("Rank  1 Group  0", "Rank  1 Group  1")
    split = split.replace("Rank  3 Group  0", "Rank  3 Group  1").replace("N/A", "7")
    probes = rows_of("nccl-tests", split)
    assert {(p["ranks"], p["nodes"], p["groups"]) for p in probes} == {(2, 2, 2)}
    assert [p["seconds"] is None for p in probes] == [False, False, True]
    with pytest.raises(InputError, match="one rank, which sends nothing"):
        rows_of("nccl-tests", "\n".join(line for line in NCCL.splitlines() if "node002" not in line
                                        and "device  1" not in line))  # fmt: skip


def test_a_forgotten_output_does_not_replace_the_last_log(tmp_path):
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(NEMO_BAR)
    app = typer.Typer()
    app.command()(convert)
    logs = [str(tmp_path / name) for name in ("a.log", "b.log")]
    result = CliRunner().invoke(app, [*logs, "--tool", "nemo", "--cluster", "h100-80gb"])
    assert isinstance(result.exception, InputError)
    assert "b.log: give at least one log, and last the table to write" in str(result.exception)
    assert (tmp_path / "b.log").read_text() == NEMO_BAR


@pytest.mark.parametrize(("name", "value"), [("tp", "9" * 30), ("step_time_s", "nan")])
def test_a_stated_number_that_no_column_holds_is_one_sentence(tmp_path, name, value):
    (tmp_path / "a.log").write_text(NEMO_BAR)
    with pytest.raises(InputError, match=rf"--column {name}=.*: must be a "):
        read_logs([tmp_path / "a.log"], "nemo", {name: value})
