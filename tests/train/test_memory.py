import json
import subprocess
import sys

GROWN = """
import json, torch
from scaling.train.memory import peak_memory
cpu = torch.device("cpu")
before = peak_memory(cpu)
torch.ones(64 * 2**20)  # 256 MiB, given back at once
after = peak_memory(cpu)
print(json.dumps([before.allocated, after.allocated, after.reserved, after.meter]))
"""


def test_the_peak_of_a_cpu_rank_remembers_what_was_given_back() -> None:
    said = subprocess.run([sys.executable, "-c", GROWN], capture_output=True, check=True, text=True)
    before, after, reserved, meter = json.loads(said.stdout)
    assert after - before >= 0.95 * 256 * 2**20
    assert (reserved, meter) == (None, "process_rss")
