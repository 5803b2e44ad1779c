"""`python -m scaling.check JSON [SECTION ...]`: checks this machine; JSON and a page of text."""

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

_LIMIT_S = 540.0  # no section begins later
_CPU_RANKS = 8


def main() -> None:
    """Exit code 0 where nothing has failed, 1 where something has, 2 for an unknown section."""
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
        if on_gpu:  # else the queue grows beyond what is timed
            torch.cuda.synchronize(device)

    yield clock_line(device, busy)
    yield energy_line(meter_of(device), busy)


def _training(device: torch.device, folder: Path) -> Iterator[Line]:
    """On the GPUs of this node; several ranks on its CPU where there is one GPU or none."""
    cpu, host = torch.device("cpu"), "cpu"
    on_cpu = Machine(gpu=host, cluster=host, ranks=_CPU_RANKS, folder=folder / host)
    gpu = None if device.type == "cpu" else _gpu_here(device)
    count = torch.cuda.device_count()
    if gpu is None:
        main_machine, where = on_cpu, "one rank"
        if device.type == "cuda":
            name = torch.cuda.get_device_name(device)
            yield not_here("training", "on the GPU", f"the catalogue of GPUs has no {name}")
    else:
        main_machine = Machine(gpu=gpu, cluster=gpu, ranks=count, folder=folder / "gpu")
        where = "one rank on the GPU"
    where_device = cpu if gpu is None else device
    with warm_server(main_machine) as server:
        yield from training_lines(main_machine, ALONE, where_device, where)
        if gpu is not None and count > 1:
            yield from training_lines(main_machine, TOGETHER, device, "several ranks")
        yield from host_lines(main_machine, server)
        yield from outcome_lines(main_machine)
        yield from memory_lines(main_machine)
        yield trace_line(main_machine)
        yield from rate_lines(main_machine)
    if gpu is None or count == 1:
        with warm_server(on_cpu):
            yield from training_lines(on_cpu, TOGETHER, cpu, "several ranks (gloo, on the CPU)")


def _gpu_here(device: torch.device) -> str | None:
    """The catalogue's name of this GPU."""
    properties = torch.cuda.get_device_properties(device)
    for gpu in GPUS.values():
        if gpu.memory_bytes is not None and not gpu_mismatch(
            gpu, properties.name, properties.total_memory
        ):
            return gpu.name
    return None


if __name__ == "__main__":
    main()
