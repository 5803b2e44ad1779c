"""The code that Inductor and Triton generate for an H100, without one.

The graphs are traced on fake CPU tensors and moved to fake CUDA tensors before they are compiled.
Triton's wheel brings ptxas. Bytes are those that a kernel reads and writes, as Inductor counts
them; kernels' time is bytes over bandwidth, products' and attention's is that of
`test_layer_kernels`.
"""

import copy
import re
import subprocess
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from scaling.train.model import blueprint as blueprints
from scaling.train.model.decoder import Layer, loss_function
from tests.train.test_layer_kernels import (
    ATTENTION_SHARES,
    BANDWIDTH,
    LLAMA_7B,
    PEAK,
    PRODUCTS_SHARE,
    TOKENS,
    plan_of,
    predicted_bytes,
)

triton = pytest.importorskip("triton")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Inductor's own

_GPU = torch.device("cuda", 0)
_FACTS = {
    "multi_processor_count": 132, "major": 9, "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024, "warp_size": 32,
}  # fmt: skip
_PROPERTIES = types.SimpleNamespace(
    name="NVIDIA H100", minor=0, gcnArchName="", total_memory=80 * 2**30, **_FACTS
)
_TARGET = triton.backends.compiler.GPUTarget("cuda", 90, 32)
PLAN = plan_of(LLAMA_7B, 1, TOKENS)
TORCHTITAN_S = 9050e-6  # its compiled layer, by the same roofline


class Written(Exception):
    """The code is there; loading it would need a driver."""


@dataclass(frozen=True)
class Code:
    """The text that Inductor wrote for one graph."""

    text: str

    @property
    def kernels(self) -> dict[str, str]:
        """The source of each Triton kernel by its name."""
        found = re.findall(
            r"async_compile\.triton\('(\w+)', '''(.*?)''', device_str", self.text, re.S
        )
        return dict(found)

    @property
    def bytes(self) -> float:
        return 1e9 * sum(map(float, re.findall(r"'kernel_num_gb': ([\d.]+)", self.text)))

    @property
    def products(self) -> int:
        return len(re.findall(r"extern_kernels\.\w+\(", self.text))


@pytest.fixture(autouse=True)
def h100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Answers of a device that is not here, and caches of the test's own."""
    import torch._inductor.config as inductor
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import scheduler
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.runtime.hints import DeviceProperties

    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    properties = DeviceProperties(type="cuda", index=0, cc=90, **_FACTS)
    monkeypatch.setattr(DeviceProperties, "create", classmethod(lambda *_: properties))
    monkeypatch.setattr(
        CudaInterface, "get_device_properties", staticmethod(lambda *_: _PROPERTIES)
    )
    monkeypatch.setattr(CudaInterface, "is_bf16_supported", staticmethod(lambda **_: True))
    monkeypatch.setattr(scheduler, "has_triton", lambda: True)
    # before torch 2.13 a first fake CUDA tensor makes a real one, where CUDA says it is there
    monkeypatch.setattr(fake_tensor, "init_gpu_context", lambda _: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", None, raising=False)
    monkeypatch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
    driver = types.SimpleNamespace(
        get_current_target=lambda: _TARGET,
        get_current_device=lambda: 0,
        get_active_torch_device=lambda: _GPU,
    )
    before = triton.runtime.driver._active
    triton.runtime.driver.set_active(driver)
    torch._dynamo.reset()
    with inductor.patch(compile_threads=1, force_disable_caches=True, benchmark_kernel=True):
        yield
    triton.runtime.driver._active = before
    torch._dynamo.reset()


def _moved(graph: torch.fx.GraphModule, inputs: list[Any]) -> tuple[torch.fx.GraphModule, Any]:
    """The graph and its inputs on a fake GPU; constants become inputs."""
    from torch._guards import detect_fake_mode
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    inputs, mode = list(inputs), detect_fake_mode(inputs)
    copied = copy.deepcopy(graph)
    last = [node for node in copied.graph.nodes if node.op == "placeholder"][-1]
    for node in list(copied.graph.nodes):
        node.args, node.kwargs = tree_map(_on_gpu, (node.args, node.kwargs))
        node.meta.pop("val", None)
        if node.op == "get_attr":
            inputs.append(getattr(graph, node.target))
            with copied.graph.inserting_after(last):
                last = copied.graph.placeholder(f"constant_{len(inputs)}")
            node.replace_all_uses_with(last)
            copied.graph.erase_node(node)
    copied.recompile()
    assert mode is not None
    with mode, torch.no_grad():
        moved = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=_GPU)
            if isinstance(x, Tensor)
            else x
            for x in inputs
        ]
    FakeTensorProp(copied, mode).propagate_dont_convert_inputs(*moved)
    return copied, moved


def _on_gpu(value: Any) -> Any:
    return _GPU if isinstance(value, torch.device) else value


def codes_of(call: Callable[[], Tensor]) -> list[Code]:
    """The code of the forward and of the backward graph of what `call` compiles."""
    codes: list[Code] = []

    def compile_graph(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        from functorch.compile import make_boxed_func
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.graph import GraphLowering

        def keep(text: str) -> None:
            codes.append(Code(text))
            raise Written

        cuda = {
            "get_device_properties": lambda *_: _PROPERTIES,
            "get_device_capability": lambda *_: (9, 0),
            "is_available": lambda: True, "current_device": lambda: 0, "device_count": lambda: 1,
            "get_rng_state": lambda *_: torch.get_rng_state(), "set_rng_state": lambda *_: None,
            "_exchange_device": lambda _: 0, "_maybe_exchange_device": lambda _: 0,
            "synchronize": lambda *_: None,
        }  # fmt: skip
        with (
            mock.patch.multiple(torch.cuda, **cuda),
            mock.patch.object(GraphLowering, "save_output_code", staticmethod(keep)),
            pytest.raises(Exception, match="Written"),
        ):
            compile_fx_inner(*_moved(graph, inputs))
        return make_boxed_func(graph.forward)

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        from functorch.compile import min_cut_rematerialization_partition
        from torch._dynamo.backends.common import aot_autograd
        from torch._inductor.decomposition import select_decomp_table
        from torch._inductor.fx_passes.joint_graph import joint_graph_passes

        def partition(joint: torch.fx.GraphModule, *words: Any, **options: Any) -> Any:
            joint_graph_passes(joint)
            return min_cut_rematerialization_partition(joint, *words, **options)

        return aot_autograd(
            fw_compiler=compile_graph,
            bw_compiler=compile_graph,
            decompositions=select_decomp_table,
            partition_fn=partition,
        )(graph, inputs)

    out = torch.compile(call, backend=backend, dynamic=False)()
    out.backward(torch.empty_like(out))
    return codes


def _undrawn(_: str, shape: tuple[int, ...], **__: Any) -> Tensor:
    return torch.empty(*shape)


def spilled_bytes(source: str, name: str, folder: Path) -> int:
    """Bytes that a kernel's registers spill on an H100, in the first configuration of each."""
    path = folder / f"{name}.py"
    path.write_text(source)
    module = types.ModuleType(name)
    module.__file__ = str(path)
    exec(compile(source, path, "exec"), vars(module))
    tuned = vars(module)[name]
    config, meta = tuned.configs[0], tuned.triton_meta
    constants = meta["constants"] | config.kwargs
    signature = {
        argument: "constexpr" if argument in constants else kind
        for argument, kind in meta["signature"].items()
    }
    made = triton.compile(
        triton.compiler.ASTSource(tuned.fn, signature, constants, meta["configs"][0]),
        target=_TARGET,
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )
    ptx = folder / f"{name}.ptx"
    ptx.write_text(made.asm["ptx"])
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    said = subprocess.run(
        [assembler, "-v", "--gpu-name", "sm_90a", "-o", "/dev/null", ptx],
        capture_output=True, text=True, check=True,
    ).stderr  # fmt: skip
    return sum(map(int, re.findall(r"(\d+) bytes spill", said)))


def test_a_compiled_7b_layer_is_no_slower_than_torchtitans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blueprints, "initial_weight", _undrawn)
    with FakeTensorMode(allow_non_fake_inputs=True):
        layer = Layer(PLAN, 0)
        x = torch.empty(1, TOKENS, LLAMA_7B.hidden_size, dtype=torch.bfloat16, requires_grad=True)
        forward, backward = codes_of(lambda: layer(x))
    assert (forward.products, backward.products) == (7, 14)
    assert len(forward.kernels) + len(backward.kernels) <= 12
    assert not any(word in forward.text + backward.text for word in ("cos(", "sin(", "pow("))
    products = 6 * TOKENS * sum(weight.numel() for weight in layer.parameters() if weight.ndim == 2)
    half_square = LLAMA_7B.num_heads * TOKENS**2 * LLAMA_7B.head_dim
    attention = 2 * half_square / ATTENTION_SHARES[0] + 5 * half_square / ATTENTION_SHARES[1]
    seconds = (products / PRODUCTS_SHARE + attention) / PEAK
    moved = forward.bytes + backward.bytes
    assert seconds + moved / BANDWIDTH < TORCHTITAN_S
    assert predicted_bytes(compiled=True) == pytest.approx(moved, rel=0.15)
    for code in (forward, backward):
        for name, source in code.kernels.items():
            assert spilled_bytes(source, name, tmp_path) == 0, name


def test_a_compiled_loss_reads_logits_twice_and_writes_16_bit_gradients() -> None:
    """So it adds 6 % to the three products of a 7B's head."""
    sizes = (1, TOKENS, LLAMA_7B.vocab_size)
    with FakeTensorMode(allow_non_fake_inputs=True):
        loss = loss_function(PLAN)
        logits = torch.empty(*sizes, dtype=torch.bfloat16, requires_grad=True)
        labels = torch.empty(sizes[:2], dtype=torch.int64)
        forward, backward = codes_of(lambda: loss(logits, labels))
    assert (len(forward.kernels), len(backward.kernels)) == (2, 1)
    assert backward.bytes == pytest.approx(2 * logits.nbytes, rel=0.01)
