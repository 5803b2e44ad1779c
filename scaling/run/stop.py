"""`scaling stop`: a study ends for good, its snakemake alive or dead; what is measured stays."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from scaling.record.running import running_here
from scaling.run.stale_lock import snakemakes_in
from scaling.study import plan_file
from scaling.study.paths import StudyPaths

# The executor is a distribution of its own, and is asked by its command.
_EXECUTOR = "snakemake_executor_plugin_submitit.stop"
_RECORDS = Path(".snakemake/submitit")
_PATIENCE_S = 60.0  # for a point to end its ranks, and for a snakemake after it


def stop_study(study: str, results: Path, cluster: str) -> tuple[list[str], bool]:
    """End every snakemake, allocation and point of a study.

    Args:
        study: a name in config/studies, or a path.
        results: the folder of all results.
        cluster: where its allocations were sent, `slurm` or `local`.

    Returns:
        A sentence for each thing that was ended, and whether nothing of it runs any more.

    Raises:
        InputError: there is no such study.
    """
    name = plan_file.study_path(study).stem
    paths = StudyPaths(results / name)
    sentences, ended = _stop_allocations(f"{paths.folder}/", cluster)
    # a snakemake without the executor: it starts nothing more once its point has ended
    snakemakes = [one for one in snakemakes_in(Path.cwd()) if _runs(one, name)]
    _send(snakemakes, signal.SIGTERM)
    points = [
        psutil.Process(one.pid) for one in running_here(paths.rows) if psutil.pid_exists(one.pid)
    ]
    _send(points, signal.SIGTERM)
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


def _runs(snakemake: psutil.Process, name: str) -> bool:
    words = snakemake.info["cmdline"]
    studies = [
        Path(word.removeprefix("study=")).stem for word in words if word.startswith("study=")
    ]
    return name in (studies or ["quickstart"])


def _send(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue  # it has just ended
