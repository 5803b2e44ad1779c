"""Snakemake's lock on this folder: left alone while its owner lives, removed when it is gone."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil
from rich.console import Console

from scaling.errors import InputError


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
