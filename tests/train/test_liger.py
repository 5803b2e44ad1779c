"""Liger's own kernels in Triton's interpreter, against the references of the check."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from scaling.check.kernel_checks import SMALL, fused_kernels
from tests.conftest import PROJECT
from tests.train.test_model import CPU

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("triton", "liger_kernel"))),
        reason="triton and liger-kernel are not here",
    ),
]
NAMES = [kernel.name for kernel in fused_kernels(SMALL, CPU)]
_COMPARE = """
import json, sys, torch
from scaling.check import kernel_checks as checks
(kernel,) = (k for k in checks.fused_kernels(checks.SMALL, torch.device("cpu")) if k.name == NAME)
drawn = torch.Generator().manual_seed(0)
inputs = [torch.randn(shape, generator=drawn) for shape in kernel.shapes]
exact = checks.forward_and_backward(kernel.reference, [x.double() for x in inputs])()
found = checks.forward_and_backward(kernel.call, inputs, copied=True)()
sys.stdout.write(json.dumps(max(map(checks._difference, found, exact))))
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_of_ligers_computes_what_plain_code_does(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _COMPARE.replace("NAME", repr(name))],
        env=os.environ | {"TRITON_INTERPRET": "1"}, cwd=PROJECT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if "InterpreterError" in ran.stderr:
        pytest.skip("this triton's interpreter cannot run it")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) < 1e-5
