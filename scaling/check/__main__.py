"""`python -m scaling.check JSON [SECTION,...]`: check this machine; writes JSON and a text page."""

import contextlib
import dataclasses
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import torch

import scaling
from scaling.check.facts import energy_line, fact_lines, machine_facts
from scaling.check.kernel_checks import LARGE, SMALL, kernel_lines
from scaling.check.lines import Line, chosen_sections, not_here, pass_or_fail, to_json, to_text
from scaling.check.training import (
    ALONE,
    TOGETHER,
    Machine,
    host_lines,
    memory_lines,
    outcome_lines,
    trace_line,
    training_lines,
    warm_server,
)
from scaling.cluster.node import raise_open_files_limit
from scaling.errors import InputError, printable
from scaling.layout.axes import Precision
from scaling.record.files import write_text
from scaling.train.device import catalogued_gpu, multiply_in_full_precision
from scaling.train.measure.peak_memory import foreign_memory
from scaling.train.measure.power import meter_of

_LIMIT_S = 540.0  # nothing is checked after it
_CPU_RANKS = 8
_LOG_LINES = 60  # of each rank, kept where its point failed

Part = tuple[str, Callable[[], Iterable[Line]]]  # what it checks, and its lines


def main() -> None:
    """Run the sections. Exit code 0 if nothing failed, 1 otherwise."""
    out, chosen = Path(sys.argv[1]), chosen_sections(",".join(sys.argv[2:]))
    raise_open_files_limit()  # as a rank does
    began = time.time()
    foreign = foreign_memory(0)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    multiply_in_full_precision()
    facts = machine_facts(device)
    with tempfile.TemporaryDirectory(prefix="scaling-check-") as name:
        folder = Path(name)
        sections: dict[str, Callable[[], Iterable[Part]]] = {
            "facts": lambda: [("facts", lambda: fact_lines(facts, device, foreign))],
            "kernels": lambda: [("kernels", lambda: _kernels(device))],
            "meters": lambda: [("meters", lambda: _meters(device))],
            "training": lambda: _training(device, folder),
        }
        parts = (part for name in chosen for part in sections[name]())
        lines: list[Line] = []
        logs = _new_logs(folder)
        for line in checked(parts, is_late=lambda: time.time() - began > _LIMIT_S):
            if line.state == "fail":
                line = dataclasses.replace(line, log=line.log or next(logs))
            lines.append(line)
            sys.stderr.write(f"{line.state:8}  {line.section}: {line.name}\n")
            about = {"scaling_version": scaling.__version__, "seconds": time.time() - began}
            write_text(out, to_json(lines, about | {"facts": facts}))
            write_text(out.with_suffix(".txt"), to_text(lines))
    sys.stdout.write(to_text(lines))
    sys.exit(any(line.state == "fail" for line in lines))


def checked(parts: Iterable[Part], *, is_late: Callable[[], bool]) -> Iterator[Line]:
    """The lines of these parts until it is late; a part that raises ends with a failed line."""
    late = "the nine minutes were over"
    for section, lines_of in parts:
        of_section = partial(dataclasses.replace, section=section)
        if is_late():
            yield of_section(not_here("all of it", late))
            continue
        try:
            for line in lines_of():
                yield of_section(line)
                if is_late():
                    yield of_section(not_here("what follows", late))
                    break
        except Exception as error:
            why = f"{type(error).__name__}: {printable(str(error))}"[:300]
            line = pass_or_fail("this part of the check", passes=False, said=why)
            yield of_section(line, log=traceback.format_exc())
        if torch.cuda.is_available():
            with contextlib.suppress(RuntimeError):  # a broken device: the part has said so
                torch.cuda.empty_cache()  # the points that follow need the whole device


def _new_logs(folder: Path) -> Iterator[str]:
    """Each time the ends of the ranks' logs that were written since the time before."""
    since = 0.0
    while True:
        logs = [path for path in sorted(folder.rglob("*.log")) if path.stat().st_mtime > since]
        since = time.time()
        ends = (path.read_text(errors="replace").splitlines()[-_LOG_LINES:] for path in logs)
        yield "\n".join(
            f"{path.relative_to(folder)}:\n" + "\n".join(end)
            for path, end in zip(logs, ends, strict=True)
        )


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

    yield energy_line(meter_of(device), busy)


def _training(device: torch.device, folder: Path) -> Iterator[Part]:
    """Train on the GPUs of this node or on its CPU; several ranks on the CPU below two GPUs."""
    cpu = torch.device("cpu")
    on_cpu = Machine(gpu="cpu", cluster="cpu", ranks=_CPU_RANKS, folder=folder / "cpu")
    gpu = None if device.type == "cpu" else _gpu_here(device)
    gpus = 0 if gpu is None else torch.cuda.device_count()
    machine, section, place = on_cpu, "one rank", cpu
    if gpu is not None:
        machine = Machine(gpu=gpu, cluster=gpu, ranks=gpus, folder=folder / "gpu")
        section, place = "one rank on the GPU", device
    elif device.type == "cuda":
        why = f"the catalogue of GPUs has no {torch.cuda.get_device_name(device)}"
        yield "training", lambda: [not_here("on the GPU", why)]
    with warm_server(machine) as server:
        yield section, lambda: training_lines(machine, ALONE, place)
        if gpus > 1:
            yield "several ranks", lambda: training_lines(machine, TOGETHER, device)
        yield "memory", lambda: memory_lines(machine)
        yield "memory", lambda: [trace_line(machine)]
        yield "warm hosts", lambda: host_lines(machine, server)
        yield "outcomes", lambda: outcome_lines(machine)
    if gpus < 2:
        with warm_server(on_cpu):
            section = "several ranks (gloo, on the CPU)"
            yield section, lambda: training_lines(on_cpu, TOGETHER, cpu)


def _gpu_here(device: torch.device) -> str | None:
    """This GPU's name in the catalogue; None if it is not there."""
    properties = torch.cuda.get_device_properties(device)
    return catalogued_gpu(properties.name, properties.total_memory)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:  # another section, or a page that cannot be written
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
