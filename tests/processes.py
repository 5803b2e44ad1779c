"""Stand-ins for programs, and what becomes of processes."""

import contextlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def write_program(path: Path, text: str) -> Path:
    """A program of this text."""
    path.write_text(text)
    path.chmod(0o755)
    return path


def ended(*words: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """A program that has ended, and what it has printed."""
    usual = {"capture_output": True, "text": True, "check": False}
    return subprocess.run([str(word) for word in words], **{**usual, **how})


def until(what: str, condition: Callable[[], object], timeout_s: float = 300) -> None:
    """Wait until it holds; a test fails with the sentence `what` if it never does."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"waited {timeout_s:g} s in vain: {what}"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether it runs: not if it is gone, or a zombie that no one has waited for yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def writers_of(folder: Path) -> dict[Path, int]:
    """The logs in this folder that are the standard output of a process, which has this pid."""
    found = {}
    for output in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):  # it has just ended
            log = output.readlink()
            if log.parent == folder:
                found[log] = int(output.parts[2])
    return found


def ended_pid() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    return process.pid


def modules_after(code: str) -> set[str]:
    """The modules of a new Python once it has run this code."""
    said = ended(sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)", check=True)
    return set(said.stdout.splitlines()[-1].split())


@contextlib.contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Let no file that this process writes become larger: as good as a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
