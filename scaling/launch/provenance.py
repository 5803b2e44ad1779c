"""Where a number comes from: versions, device, commit. Read without importing torch."""

import dataclasses
import hashlib
import importlib.metadata
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import scaling
from scaling.record.rank_files import Stack

_PACKAGES = ("torch_version", "deepspeed_version")


def provenance_of(stack: Stack | None) -> dict[str, Any]:
    """The row's columns about the software and the device, from one rank's stack.

    Without one (no rank got that far) the versions are the installed ones and the device is null.
    """
    columns: dict[str, Any] = dict.fromkeys(each.name for each in dataclasses.fields(Stack))
    columns |= {name: _installed(name.removesuffix("_version")) for name in _PACKAGES}
    columns |= dataclasses.asdict(stack) if stack else {}
    del columns["host"]
    columns["python_version"] = platform.python_version()
    # without what came later and is not there: older rows of the same stack share the digest
    later = ("liger_kernel_version",)
    shared = {name: fact for name, fact in columns.items() if fact or name not in later}
    return columns | {
        "stack_fingerprint": fingerprint(shared),
        "scaling_version": scaling.__version__,
        "git_commit": git_commit(Path(__file__).parents[2]),
    }


def fingerprint(columns: dict[str, Any]) -> str:
    """A short digest of what rows must share to be averaged; host names are no part of it."""
    return hashlib.sha256(json.dumps(columns, sort_keys=True).encode()).hexdigest()[:12]


def git_commit(root: Path) -> str | None:
    """The commit of the tool's own checkout; None where it is installed without one.

    A package in the environment of somebody's repository must not report that repository's commit.
    """
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # a checkout copied to a machine without git
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
