"""What other snakemakes of this folder left: their lock, and what `scaling stop` ends for good."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
from rich.console import Console

from scaling.errors import InputError
from scaling.record.running import runners_here
from scaling.study import plan_file
from scaling.study.paths import StudyPaths

# The executor is a distribution of its own, and is asked by its command.
_EXECUTOR = "snakemake_executor_plugin_submitit.stop"
_RECORDS = Path(".snakemake/submitit")
_PATIENCE_S = 60.0  # for a point to end its ranks, and for a snakemake after it


def stop_study(study: str, results: Path, cluster: str) -> tuple[list[str], bool]:
    """End every snakemake, allocation and point of a study.

    Its allocations were sent to `cluster`, `slurm` or `local`.

    Returns:
        A sentence for each thing that was ended, and whether nothing of it runs any more.

    Raises:
        InputError: there is no such study.
    """
    name = plan_file.study_path(study).stem
    paths = StudyPaths(results / name)
    sentences, ended = _stop_allocations(f"{paths.folder}/", cluster)
    # a snakemake without the executor: it starts nothing more once its point has ended
    snakemakes = _snakemakes_of(name)
    _terminate(snakemakes)
    points = [
        psutil.Process(one.pid) for one in runners_here(paths.rows) if psutil.pid_exists(one.pid)
    ]
    _terminate(points)
    _, left = psutil.wait_procs([*points, *snakemakes], timeout=_PATIENCE_S)
    if points:
        sentences.append(f"ended {len(points)} point(s) on this machine; they are still wanted")
    if snakemakes:
        sentences.append(f"ended {len(snakemakes)} snakemake(s) on this machine")
    sentences += [f"process {process.pid} has not ended yet" for process in left]
    return sentences, ended and not left


def _stop_allocations(prefix: str, cluster: str) -> tuple[list[str], bool]:
    if not _RECORDS.is_dir():
        return [], True
    done = subprocess.run(
        [sys.executable, "-m", _EXECUTOR, str(_RECORDS), prefix, "--cluster", cluster],
        capture_output=True,
        text=True,
        check=False,
    )
    return [*done.stdout.splitlines(), *done.stderr.splitlines()], done.returncode == 0


def refuse_a_second(name: str) -> None:
    """Two snakemakes of one study would only tell each other of a lock.

    Raises:
        InputError: one of this machine runs the study already.
    """
    for other in _snakemakes_of(name):
        raise InputError(
            f"{name}: runs already, as process {other.pid} of this machine: `scaling status {name} "
            f"--watch` says how far it is, `scaling stop {name}` ends it"
        )


def _snakemakes_of(name: str) -> list[psutil.Process]:
    snakemakes = []
    for one in snakemakes_in(Path.cwd()):
        studies = [word[6:] for word in one.info["cmdline"] if word.startswith("study=")]
        if name in (Path(study).stem for study in studies or ["quickstart"]):
            snakemakes.append(one)
    return snakemakes


def _terminate(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            process.terminate()


def clear_stale_lock(folder: Path, command: Sequence[str], console: Console) -> None:
    """Make sure that `command`, a snakemake, can start in `folder`.

    A killed Snakemake leaves its lock. Where a Snakemake still works in this folder the lock is
    its own affair (it locks files, so that two studies can run at once); where none does, the lock
    is removed.

    Raises:
        InputError: the folder is shared, and the lock may belong to a run on another machine.
    """
    locks = folder / ".snakemake" / "locks"
    if not locks.is_dir() or not any(locks.iterdir()) or snakemakes_in(folder):
        return
    if _is_shared(folder):
        raise InputError(
            f"{locks}: locked by a snakemake that does not run on this machine; if it runs on no "
            "other one either, remove the lock: snakemake --unlock"
        )
    console.print("Removing the lock of a snakemake that was killed.", markup=False)
    subprocess.run(
        [*command, "--unlock"],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def snakemakes_in(folder: Path) -> list[psutil.Process]:
    """The other snakemakes of this machine that work in this folder; `info` holds their words."""
    return [
        process
        for process in psutil.process_iter(["pid", "cmdline", "cwd"])
        if process.info["pid"] != os.getpid()
        and any("snakemake" in Path(word).name for word in (process.info["cmdline"] or [])[:3])
        and process.info["cwd"] == str(folder)
    ]


def _is_shared(folder: Path) -> bool:
    """Whether the folder lies on a file system that other machines mount too."""
    mounts = sorted(psutil.disk_partitions(all=True), key=lambda m: len(m.mountpoint))
    holding = [m for m in mounts if folder.is_relative_to(m.mountpoint)]
    shared = {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "panfs", "wekafs"}
    return bool(holding) and holding[-1].fstype in shared
