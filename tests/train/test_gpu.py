"""Tests that need a GPU; skipped without one. Nothing here asserts a speed."""

import json
from pathlib import Path

import pytest
import torch

from scaling.check.lines import SECTIONS
from tests.ran import scaling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.ranks,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


@pytest.mark.timeout(700)
@pytest.mark.parametrize("section", SECTIONS)
def test_this_gpu_passes_the_check(tmp_path: Path, section: str) -> None:
    ran = scaling(tmp_path, "check", "check.json", "--only", section)
    lines = json.loads((tmp_path / "check.json").read_text())["lines"]
    states = {line["name"]: line["state"] for line in lines}
    assert "fail" not in states.values(), ran.stdout
    expected = {"kernels": ["attention math bf16", "attention flash2 bf16"]}.get(section, [])
    assert all(states[name] == "pass" for name in expected)
