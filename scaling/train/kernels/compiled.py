"""Compile a model's layers and loss with torch.compile, and count the graphs."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from torch import nn

from scaling.train.failures import KernelUnavailable

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def require_compiler(device: torch.device) -> None:
    """Check that the tools the compiler needs are installed.

    Raises:
        KernelUnavailable: no C++ compiler for a CPU, no Triton for a GPU. On a CPU also if torch's
            path has a space: its compiler then finds no library of torch.
    """
    if device.type == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except InvalidCxxCompiler as error:
            raise KernelUnavailable("compile on a CPU needs a C++ compiler (g++ >= 9)") from error
        if " " in (place := str(Path(torch.__file__).parent)):
            raise KernelUnavailable(
                f"compile on a CPU needs torch in a path without space: {place}"
            )
        return
    from torch.utils._triton import has_triton

    if not has_triton():
        raise KernelUnavailable("compile on a GPU needs triton, which is not installed here")


def compile_modules(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> None:
    """Have every module of these kinds compiled when it first runs.

    Modules are compiled one by one, not the model as a whole. Modules of one kind share their code,
    so a model of 80 layers compiles as fast as one of 2. A pipeline acts between layers anyway. The
    engine's hooks stay outside: they differ between modules, so each module would compile anew.
    """
    for module in model.modules():
        if isinstance(module, kinds):
            module.forward = compiled(module.forward)


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function, compiled when it first runs."""
    import torch._dynamo.config
    import torch._inductor.config

    # the launcher turns the compiler off for ranks, since most never need it
    os.environ.pop("TORCHDYNAMO_DISABLE", None)
    torch._dynamo.config.disable = False
    # never fall back to running uncompiled
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    # no pool of processes, which could outlive a rank that exits at once
    torch._inductor.config.compile_threads = 1
    # on a CPU the profiler sees only kernels with a marker
    torch._inductor.config.cpp.enable_kernel_profile = True
    return torch.compile(function, dynamic=False)


def graphs_compiled() -> int:
    """Number of graphs that this process has compiled so far."""
    import torch._dynamo.utils

    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
