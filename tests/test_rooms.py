"""Every module of scaling/ has a test."""

import ast
import functools

import pytest

from tests.conftest import PROJECT

SOURCES, TESTS = PROJECT / "scaling", PROJECT / "tests"

# Modules that no test imports or is named after -> a test that runs their code.
HELD_BY = {
    "analyse.group": "analyse/test_known_truth.py",
    "predict.cost.own_deepspeed": "predict/test_own_stack.py",
    "predict.cost.own_memory": "predict/test_own_stack.py",
    "arrays": "importing/test_reader.py",
    "predict.cost.sharding": "predict/test_hybrid_sharding.py",
    "predict.cost.own_torch": "check/test_oracle.py",
    "check.provoked": "check/test_outcomes.py",
    "probe.host_facts": "probe/test_ranks.py",
    "report.charts.comparisons": "report/test_charts.py",
    "report.charts.sizes": "report/test_charts.py",
    "study.catalogues": "study/test_study.py",
    "train.engines.deepspeed.engine": "train/test_parity.py",
    "train.engines.torch.fsdp": "train/test_parity.py",
    "train.engines.torch.optimizer_step": "train/test_parity.py",
    "train.hf_trainer": "launch/test_other_program.py",
    "train.parallel": "train/test_parity.py",
    "train.rehearsal.limits": "check/test_oracle.py",
    "train.rehearsal.waits": "train/test_rehearsal.py",
}


def name_of(path):
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts)


MODULES = [
    name_of(path)
    for path in sorted(SOURCES.rglob("*.py"))
    if path.name not in {"__init__.py", "__main__.py"}
]


def imported_by_tests():
    """Modules that a test_*.py imports, or imports a name from."""
    names = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
    return {name.removeprefix("scaling.") for name in names}


def has_its_own(module):
    room, name = module.split(".")[0], module.split(".")[-1]
    return any((TESTS / room).rglob(f"test_{name}.py"))


def is_within(module, room):
    return f"{module}.".startswith(f"{room}.")


@functools.cache
def without_a_test():
    """Modules that no test imports or is named after."""
    imported = imported_by_tests()
    return {name for name in MODULES if name not in imported and not has_its_own(name)}


def test_every_module_has_its_test_or_is_named_in_the_test_of_its_room():
    unheld = [n for n in without_a_test() if not any(is_within(n, room) for room in HELD_BY)]
    assert unheld == []


@pytest.mark.parametrize(("room", "test"), HELD_BY.items())
def test_what_is_named_as_held_has_no_other_test_and_the_one_named_exists(room, test):
    held = any(is_within(name, room) for name in without_a_test())
    assert held, f"scaling/ has no {room}, or a test imports it: take its line away"
    assert (TESTS / test).exists()
