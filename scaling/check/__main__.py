"""`python -m scaling.check JSON`: checks this machine; JSON, and beside it a page of text."""

import sys
import time
from pathlib import Path

import torch

import scaling
from scaling.check.facts import fact_lines, machine
from scaling.check.kernels import LARGE, SMALL, kernel_lines
from scaling.check.lines import Line, json_of, page_of
from scaling.check.meters import clock_line, energy_line
from scaling.layout.axes import Precision
from scaling.record.files import write_text
from scaling.train.measure.memory import foreign_memory
from scaling.train.measure.power import meter_of


def main() -> None:
    """Exit code 0 where nothing has failed, 1 where something has."""
    out = Path(sys.argv[1])
    began = time.time()
    foreign = foreign_memory(0)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    facts = machine(device)
    lines = [*fact_lines(facts, device, foreign), *_lines_of_work(device)]
    about = {"scaling_version": scaling.__version__, "seconds": time.time() - began, "facts": facts}
    write_text(out, json_of(lines, about))
    page = page_of(lines)
    write_text(out.with_suffix(".txt"), page)
    sys.stdout.write(page)
    sys.exit(any(line.state == "fail" for line in lines))


def _lines_of_work(device: torch.device) -> list[Line]:
    on_gpu = device.type == "cuda"
    precisions: tuple[Precision, ...] = ("bf16", "fp16") if on_gpu else ("fp32", "bf16")
    lines = [
        line
        for precision in precisions
        for line in kernel_lines(LARGE if on_gpu else SMALL, precision, device)
    ]
    matrix = torch.randn(2048 if on_gpu else 256, 2048 if on_gpu else 256, device=device)

    def busy() -> None:
        torch.mm(matrix, matrix)
        if on_gpu:  # else the queue grows beyond what is timed
            torch.cuda.synchronize(device)

    return [*lines, clock_line(device, busy), energy_line(meter_of(device), busy)]


if __name__ == "__main__":
    main()
