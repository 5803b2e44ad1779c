"""Everything a machine without network needs for `scaling check`, in one folder.

    python benchmarks/gpu/collect.py [FOLDER] [--python 3.12]

The other machine brings Python of that version and torch with CUDA (and with it numpy, sympy, ...).
The wheels are those of requirements.lock, checked by their hashes; deepspeed, which is published as
source, is built here, with none of its operators. `run.sh` beside this installs and runs them.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = PROJECT / "gpu-check"  # git ignores it
# What the check imports and torch does not bring.
WANTED = (
    "annotated-doc", "annotated-types", "cloudpickle", "duckdb", "einops", "hjson", "msgpack",
    "nvidia-ml-py", "psutil", "py-cpuinfo", "pyarrow", "pydantic", "pydantic-core", "pyyaml",
    "rich", "markdown-it-py", "mdurl", "pygments", "shellingham", "tabulate", "tqdm", "typer",
    "typing-extensions", "typing-inspection", "packaging", "ninja",
)  # fmt: skip
BUILT = "deepspeed"
OPTIONAL = "liger-kernel==0.8.5"


def locked(lock: str, wanted: tuple[str, ...]) -> str:
    """The requirements of a lock file that have these names, with their hashes."""
    blocks = re.split(r"\n(?=[a-zA-Z0-9])", lock)
    named = {re.split(r"[=\s\[;]", block)[0].lower(): block for block in blocks}
    return "\n".join(named[name] for name in wanted if name in named) + "\n"


def main() -> None:
    """Fill the folder and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--python", default="3.12")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    lock = (PROJECT / "requirements.lock").read_text(encoding="utf-8")
    requirements = given.folder / "requirements.txt"
    requirements.write_text(locked(lock, WANTED), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    platform = ["--python-version", given.python, "--only-binary", ":all:", "--no-deps"]
    for glibc in ("2_17", "2_28"):
        platform += ["--platform", f"manylinux_{glibc}_x86_64"]
    platform += ["--platform", "manylinux2014_x86_64"]
    into = ["--quiet", "--dest", str(given.folder)]
    subprocess.run([*pip, "download", *platform, *into, "-r", str(requirements)], check=True)
    subprocess.run([*pip, "download", *platform, *into, OPTIONAL], check=True)
    source = given.folder / "source.txt"
    source.write_text(locked(lock, (BUILT,)), encoding="utf-8")
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--require-hashes"]
    subprocess.run([*build, "--wheel-dir", str(given.folder), "-r", str(source)], check=True)
    wheels = sorted(given.folder.glob("*.whl"), key=lambda path: -path.stat().st_size)
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 2**20:7.1f} MiB  {wheel.name}")
    print(f"{sum(wheel.stat().st_size for wheel in wheels) / 2**20:7.1f} MiB in {given.folder}")


if __name__ == "__main__":
    main()
