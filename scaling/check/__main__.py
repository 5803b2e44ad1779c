"""`python -m scaling.check JSON [SECTION ...]`: check this machine; writes JSON and a text page."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

import scaling
from scaling.check.bytes_and_rates import memory_lines, rate_lines, trace_line
from scaling.check.facts import fact_lines, machine_facts
from scaling.check.kernels import LARGE, SMALL, kernel_lines
from scaling.check.lines import Line, not_here, to_json, to_text
from scaling.check.meters import clock_line, energy_line
from scaling.check.outcomes import outcome_lines
from scaling.check.training import (
    ALONE,
    TOGETHER,
    Machine,
    host_lines,
    training_lines,
    warm_server,
)
from scaling.cluster.hardware import GPUS
from scaling.errors import did_you_mean
from scaling.layout.axes import Precision
from scaling.record.files import write_text
from scaling.train.device import gpu_mismatch
from scaling.train.measure.memory import foreign_memory
from scaling.train.measure.power import meter_of

_LIMIT_S = 540.0  # no section begins after it
_CPU_RANKS = 8


def main() -> None:
    """Run the sections. Exit code 0 if nothing failed, 1 otherwise, 2 for a wrong section."""
    out, chosen = Path(sys.argv[1]), sys.argv[2:]
    began = time.time()
    foreign = foreign_memory(0)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    facts = machine_facts(device)
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="scaling-check-") as folder:
        sections: dict[str, Callable[[], Iterable[Line]]] = {
            "facts": lambda: fact_lines(facts, device, foreign),
            "kernels": lambda: _kernels(device),
            "meters": lambda: _meters(device),
            "training": lambda: _training(device, Path(folder)),
        }
        if unknown := sorted({*chosen} - {*sections}):
            sys.stderr.write(f"--only {unknown[0]!r}: {did_you_mean(unknown[0], sections)}\n")
            sys.exit(2)
        for name, section in sections.items():
            if chosen and name not in chosen:
                continue
            if time.time() - began > _LIMIT_S:
                lines.append(not_here(name, "all of it", "the nine minutes were over"))
                continue
            for line in section():
                lines.append(line)
                sys.stderr.write(f"{line.state:8}  {line.section}: {line.name}\n")
    about = {"scaling_version": scaling.__version__, "seconds": time.time() - began, "facts": facts}
    write_text(out, to_json(lines, about))
    page = to_text(lines)
    write_text(out.with_suffix(".txt"), page)
    sys.stdout.write(page)
    sys.exit(any(line.state == "fail" for line in lines))


def _kernels(device: torch.device) -> Iterator[Line]:
    on_gpu = device.type == "cuda"
    precisions: tuple[Precision, ...] = ("bf16", "fp16") if on_gpu else ("fp32", "bf16")
    for precision in precisions:
        yield from kernel_lines(LARGE if on_gpu else SMALL, precision, device)


def _meters(device: torch.device) -> Iterator[Line]:
    on_gpu = device.type == "cuda"
    matrix = torch.randn(2048 if on_gpu else 256, 2048 if on_gpu else 256, device=device)

    def busy() -> None:
        torch.mm(matrix, matrix)
        if on_gpu:  # otherwise work would queue up beyond the timed span
            torch.cuda.synchronize(device)

    yield clock_line(device, busy)
    yield energy_line(meter_of(device), busy)


def _training(device: torch.device, folder: Path) -> Iterator[Line]:
    """Train on the GPUs of this node or on its CPU; several ranks on the CPU below two GPUs."""
    cpu = torch.device("cpu")
    on_cpu = Machine(gpu="cpu", cluster="cpu", ranks=_CPU_RANKS, folder=folder / "cpu")
    gpu = None if device.type == "cpu" else _gpu_here(device)
    gpus = 0 if gpu is None else torch.cuda.device_count()
    machine, section = on_cpu, "one rank"
    if gpu is not None:
        machine = Machine(gpu=gpu, cluster=gpu, ranks=gpus, folder=folder / "gpu")
        section = "one rank on the GPU"
    elif device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        yield not_here("training", "on the GPU", f"the catalogue of GPUs has no {name}")
    with warm_server(machine) as server:
        yield from training_lines(machine, ALONE, cpu if gpu is None else device, section)
        if gpus > 1:
            yield from training_lines(machine, TOGETHER, device, "several ranks")
        yield from host_lines(machine, server)
        yield from outcome_lines(machine)
        yield from memory_lines(machine)
        yield trace_line(machine)
        yield from rate_lines(machine)
    if gpus < 2:
        with warm_server(on_cpu):
            yield from training_lines(on_cpu, TOGETHER, cpu, "several ranks (gloo, on the CPU)")


def _gpu_here(device: torch.device) -> str | None:
    """This GPU's name in the catalogue; None if it is not there."""
    properties = torch.cuda.get_device_properties(device)
    for gpu in GPUS.values():
        if gpu.memory_bytes is not None and not gpu_mismatch(
            gpu, properties.name, properties.total_memory
        ):
            return gpu.name
    return None


if __name__ == "__main__":
    main()
