"""An on/off axis is its line, what computes it and what predicts it: three files."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT

# File -> a text of it and what stands there once the axis exists.
CHANGES = {
    "layout/axes.py": (
        "    precision: Precision = _axis(",
        '    sparse_mlp: bool = _flag("sparse mlp", "sparse-mlp", added_later=True)\n'
        "    precision: Precision = _axis(",
    ),
    "train/model/blocks.py": (
        "    return lambda gate, up: activate(gate) * up\n",
        "    if plan.layout.sparse_mlp:\n"
        "        return lambda gate, up: functional.relu(gate) * up\n"
        "    return lambda gate, up: activate(gate) * up\n",
    ),
    "predict/cost/compute.py": (
        "    flops = (attention * f.attention_weights",
        "    mlp = mlp * np.where(f.sparse_mlp, 0.5, 1.0)\n"
        "    flops = (attention * f.attention_weights",
    ),
}
USED = """\
import dataclasses

import torch

from scaling.layout.layout import Layout
from scaling.predict.cost.model import predict
from scaling.predict.read.points import points_of_layouts
from scaling.predict.read.residual import NAMES
from scaling.study.load import load_clusters
from tests.points import TINY, tiny_point
from tests.train.test_model import blueprint
from tests.train.test_oracles import decoder, logits_of

plain = Layout(dp=8, seq_length=2048, micro_batch_size=8)
sparse = dataclasses.replace(plain, sparse_mlp=True)
wide = dataclasses.replace(TINY, hidden_size=4096, ffn_hidden_size=16384)
points = points_of_layouts(
    [plain, sparse], [wide] * 2, load_clusters(), models=["m"] * 2, clusters=["h100-80gb-dgx"] * 2
)
before, after = predict(points).time_terms["gemm_s"]
assert after < 0.8 * before, (before, after)
assert "sparse_mlp" in NAMES  # what formulas leave of it is learned from rows
assert "sparse-mlp" in sparse.label
logits = [logits_of(decoder(TINY, sparse_mlp=on)) for on in (False, True)]
assert not torch.equal(*logits)
"""


@pytest.mark.slow
def test_new_flag_is_trained_and_predicted_by_at_most_five_files(tmp_path: Path) -> None:
    for folder in ("scaling", "config", "tests"):
        shutil.copytree(PROJECT / folder, tmp_path / folder)
    for name, (before, after) in CHANGES.items():
        path = tmp_path / "scaling" / name
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1
        path.write_text(text.replace(before, after), encoding="utf-8")
    subprocess.run([sys.executable, "-c", USED], cwd=tmp_path, check=True)
    assert len(CHANGES) <= 5
