"""Everything a machine without network needs for `scaling check`, in one file.

    python benchmarks/gpu/collect.py [FOLDER] [--python 3.12]

The other machine brings Python of that version, torch with CUDA (and with it numpy, sympy, ...),
pyarrow and rich.
The wheels are those of requirements.lock, checked by their hashes; deepspeed, which is published as
source, is built here, with none of its operators. All wheels are compressed together, without
their own compression, to less than may be carried in one call. `run.sh` beside this installs them
and runs the check.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = PROJECT / "gpu-check"  # git ignores it
MOST_MIB = 30.0
# Imports of the check that neither torch nor the machine brings.
WANTED = (
    "annotated-doc", "annotated-types", "cloudpickle", "duckdb", "einops", "hjson", "msgpack",
    "nvidia-ml-py", "psutil", "py-cpuinfo", "pydantic", "pydantic-core", "pyyaml", "shellingham",
    "tabulate", "tqdm", "typer", "typing-extensions", "typing-inspection", "packaging", "ninja",
)  # fmt: skip
BUILT = "deepspeed"
OPTIONAL = "liger-kernel==0.8.5"


def locked(lock: str, wanted: tuple[str, ...]) -> str:
    """The requirements of a lock file that have these names, with their hashes."""
    blocks = re.split(r"\n(?=[a-zA-Z0-9])", lock)
    named = {re.split(r"[=\s\[;]", block)[0].lower(): block for block in blocks}
    return "\n".join(named[name] for name in wanted if name in named) + "\n"


def pack(wheels: Iterable[Path], archive: Path) -> None:
    """Write the wheels to a tar.xz, each with its files uncompressed: xz does that better."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive, "w:xz", preset=9) as tar:
        for wheel in wheels:
            plain = Path(folder, wheel.name)
            with zipfile.ZipFile(wheel) as packed, zipfile.ZipFile(plain, "w") as unpacked:
                for entry in packed.infolist():
                    unpacked.writestr(entry, packed.read(entry), zipfile.ZIP_STORED)
            tar.add(plain, wheel.name)


def download(folder: Path, python: str) -> None:
    """Fetch the wheels for this Python, and build what is published as source."""
    lock = (PROJECT / "requirements.lock").read_text(encoding="utf-8")
    requirements, source = folder / "requirements.txt", folder / "source.txt"
    requirements.write_text(locked(lock, WANTED), encoding="utf-8")
    source.write_text(locked(lock, (BUILT,)), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    platform = ["--python-version", python, "--only-binary", ":all:", "--no-deps"]
    for glibc in ("manylinux_2_17", "manylinux_2_28", "manylinux2014"):
        platform += ["--platform", f"{glibc}_x86_64"]
    fetch = [*pip, "download", "--quiet", "--dest", str(folder), *platform]
    subprocess.run([*fetch, "-r", str(requirements)], check=True)
    subprocess.run([*fetch, OPTIONAL], check=True)
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--require-hashes"]
    subprocess.run([*build, "--wheel-dir", str(folder), "-r", str(source)], check=True)


def main() -> None:
    """Write the file and say how large it is; exit code 1 where that is too large to carry."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--python", default="3.12")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    archive = given.folder / "wheels.tar.xz"
    with tempfile.TemporaryDirectory() as folder:
        download(Path(folder), given.python)
        wheels = sorted(Path(folder).glob("*.whl"), key=lambda path: -path.stat().st_size)
        for wheel in wheels:
            print(f"{wheel.stat().st_size / 2**20:7.1f} MiB  {wheel.name}")
        pack(wheels, archive)
    size = archive.stat().st_size / 2**20
    print(f"{size:7.1f} MiB  {archive}, of {len(wheels)} wheels")
    if size > MOST_MIB:
        sys.exit(f"{archive} has {size:.1f} MiB; at most {MOST_MIB:.0f} can be carried in one call")


if __name__ == "__main__":
    main()
