"""The packages carried to a machine with a GPU and without network."""

import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
from types import ModuleType

import pytest

from tests.conftest import PROJECT

pytestmark = pytest.mark.slow

# torch's own requirements, which are there; numpy comes with every build of it for a GPU.
TORCHS_OWN = {
    "torch",
    "numpy",
    "mpmath",
    "markupsafe",
    "cuda-bindings",
    "cuda-pathfinder",
    "triton",
}
UNNEEDED = {"colorama", "wcwidth"}  # tqdm and tabulate take them where they are
_IMPORTED = """
import json, sys
sys.path.insert(0, "benchmarks/gpu")
import measure
import scaling.check.__main__, scaling.check.oracle, scaling.cli.verbs
import scaling.train.program, scaling.train.rehearsal.rehearsal
from scaling.layout.engines import ENGINES, engine_module
for name in ENGINES:
    engine_module(name, "engine")
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.fixture
def collect(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(PROJECT / "benchmarks" / "gpu")
    return importlib.import_module("collect")


def test_everything_that_a_check_imports_is_carried(collect: ModuleType) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True, cwd=PROJECT
    )
    modules = set(json.loads(done.stdout.splitlines()[-1]))
    owners = importlib.metadata.packages_distributions()
    imported = {_plain(owner) for name in modules for owner in owners.get(name, ())}
    needs = importlib.metadata.requires("torch") or []
    torchs = TORCHS_OWN | {_plain(re.split(r"[^\w.-]", each)[0]) for each in needs}
    # the machine brings pyarrow
    carried = {"pyarrow", *collect.WANTED, collect.BUILT, collect.OPTIONAL.partition("==")[0]}
    assert imported - torchs - carried - UNNEEDED - {"training-scaling"} == set()


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
