"""Compiled layers train the same, and no compiling is timed."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from scaling.layout.engines import ENGINES
from scaling.study.point import Point
from scaling.train.failures import KernelUnavailable
from scaling.train.kernels.compiled import require_compiler
from scaling.train.model.decoder import Layer, loss_function
from scaling.train.model.encoder_decoder import StackLayer
from scaling.train.parallel.groups import Groups
from tests.points import TINY, TINY_T5, tiny_point
from tests.train.conftest import Attempt, Train
from tests.train.test_model import blueprint
from tests.train.test_parity import compare

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(" " in torch.__file__, reason="torch compiles in no path with a space"),
]

IMPORTED_LATE = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`")  # by Inductor


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """A group whose collectives return at once: this process is rank 0 of it."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")  # a mask
@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # which the compiler does
@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        (Layer, {"tp": 2}),
        (Layer, {"tp": 2, "sequence_parallel": True}),
        (Layer, {"cp": 2}),
        (Layer, {"precision": "fp8", "attention": "flash2"}),
        (StackLayer, {"tp": 2, "sequence_parallel": True}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_a_layer_is_one_graph_whatever_crosses_its_ranks_and_in_8_bits(
    two_ranks: None, kind: type[Layer | StackLayer], layout: dict[str, Any]
) -> None:
    shape = TINY if kind is Layer else TINY_T5
    point = tiny_point(shape=shape, **layout)
    groups = Groups(0, point.layout, timeout_s=60)
    plan = blueprint(point, groups.tensor_parallel)
    plan = dataclasses.replace(plan, cp=groups.context_parallel)
    layer = Layer(plan, 0) if kind is Layer else StackLayer(plan, "encoder.0", crosses=False)
    shares = "cp" in layout or "sequence_parallel" in layout
    tokens = 16 if shares else 32  # where the other rank has as many
    bias = [] if kind is Layer else [torch.zeros(1, shape.num_heads // 2, 32, 32)]
    x = torch.randn(8, tokens, shape.hidden_size, dtype=plan.dtype, requires_grad=True)
    explained = torch._dynamo.explain(layer)(x, *bias)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0), explained.break_reasons
    # a cosine of every element would take longer than the layer's norms: tables are read
    called = [str(node.target) for node in explained.graphs[0].graph.nodes]
    assert not [name for name in called if "cos" in name or "sin" in name]


@IMPORTED_LATE
def test_a_compiled_loss_holds_no_fp32_logits() -> None:
    """It saves the 16-bit logits and numbers of each token."""
    loss = loss_function(blueprint(tiny_point(precision="bf16", compile=True)))
    logits = torch.randn(2, 32, 256, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, 256, (2, 32))
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor
    ):
        found = loss(logits, labels)
    found.backward()
    assert sum(tensor.nbytes for tensor in saved if tensor.numel() >= logits.numel()) == (
        logits.nbytes
    )
    expected = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)


def compiled_point(**changes: Any) -> Point:
    """One layout for all that compile: g++ writes its kernels, two seconds for each, once."""
    layout = {"tp": 2, "sequence_parallel": True, "zero_stage": 1, "attention": "flash2"}
    # a busy machine compiles for minutes; near the limit nothing is split
    return tiny_point(compile=True, time_limit_s=600, **(layout | changes))


@pytest.mark.ranks
@pytest.mark.parametrize("engine", ENGINES)
def test_a_compiled_layout_trains_what_one_process_trains(train: Train, engine: str) -> None:
    point = compiled_point(engine=engine, warmup_steps=2, measured_steps=8)
    results = train(point).values()
    compare(point, [dataclasses.asdict(result) for result in results])
    for result in results:
        # the profiler sees the compiler's kernels, and not only the matrix products between them
        spent = result.spent
        assert spent is not None
        assert spent["compute_s"]
        # and whose collectives the compiled layers start, which never pass torch.distributed
        assert spent["tp_comm_s"] == pytest.approx(spent["comm_s"], rel=0.05)


@pytest.mark.ranks
def test_a_graph_compiled_within_the_measured_steps_ends_the_point(attempt: Attempt) -> None:
    layout = {"tp": 1, "sequence_parallel": False, "zero_stage": 3}  # each block by itself
    layout |= {"attention": "math", "activation_checkpointing": "selective"}
    (failure,) = attempt(compiled_point(warmup_steps=0, measured_steps=1, **layout)).values()
    assert failure.outcome == "error"
    assert "compiled within the measured steps: warmup_steps=0" in failure.message


def test_a_missing_compiler_is_named() -> None:
    # the configuration's own patch: monkeypatch would leave the option deleted for later tests
    missing = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)})
    with missing, pytest.raises(KernelUnavailable, match=r"needs a C\+\+ compiler"):
        require_compiler(torch.device("cpu"))
    require_compiler(torch.device("cpu"))
