"""`scaling new`: make a folder to run studies in; what ships stays in the installed package."""

import re
import shutil
from pathlib import Path

import jinja2

from scaling.cluster.hardware import GPUS
from scaling.cluster.slurm_site import NodeKind, SlurmSite
from scaling.errors import InputError, shortened
from scaling.study.config_json import FILE, ConfigModel
from scaling.study.paths import SHIPPED

_TEMPLATES = "workflow/new"
_CHANGE = "CHANGE-ME"


def make_folder(
    folder: Path, site: SlurmSite | None, model: ConfigModel | None = None
) -> list[Path]:
    """Write Snakefile, config/ and profiles into a new folder, or one that has none of them.

    The first study is about `model`, whose config.json is copied.

    Returns:
        What was written, in reading order.
    """
    texts = {
        "Snakefile": _text("Snakefile"),
        "config/clusters.yaml": clusters_text(site),
        "config/studies/first.yaml": _render("first.yaml.j2", **_study_facts(site, model)),
        ".gitignore": _text("gitignore"),
    }
    if model is not None and model.path.suffix == ".json":
        texts[f"config/{model.name}/{FILE}"] = model.path.read_text(encoding="utf-8")
    copies = {"config/models.yaml", "config/profiles/local", "config/profiles/slurm"}
    existing = sorted(name for name in {*texts, *copies} if (folder / name).exists())
    if existing:
        raise InputError(f"{folder / existing[0]}: exists already; give a new folder")
    written = [folder / name for name in (*texts, *sorted(copies))]
    made = {parent for path in written for parent in path.parents if not parent.exists()}
    try:
        for path in written:
            path.parent.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        for name in copies:
            source = SHIPPED / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
        if site is not None:
            profile = folder / "config/profiles/slurm/config.yaml"
            profile.write_text(within_limits(profile.read_text(encoding="utf-8"), site), "utf-8")
    except OSError as error:  # such as a full disk; later the same command shall work
        for path in filter(Path.exists, written):
            (shutil.rmtree if path.is_dir() else Path.unlink)(path)
        for parent in sorted(filter(Path.exists, made), reverse=True):  # the deepest first
            parent.rmdir()
        reason = shortened(error.strerror or error, 200)
        raise InputError(f"{folder}: cannot be written: {reason}") from error
    return written


def within_limits(profile: str, site: SlurmSite) -> str:
    """The profile for Slurm, with allocations as long and as many as the site allows."""
    for key, most, source in (
        ("submitit-pack-minutes", site.best.max_minutes, "sinfo: a job's time limit"),
        ("submitit-max-allocations", site.max_submit_jobs, "sacctmgr: MaxSubmitJobs"),
    ):
        line = re.search(rf"^{key}: (\d+).*$", profile, re.M)
        assert line is not None
        if most is not None and most < int(line[1]):
            profile = profile.replace(line[0], f"{key}: {most} # {source}")
    return profile


def clusters_text(site: SlurmSite | None) -> str:
    """The clusters.yaml of a new folder; each line of the site's entries names its source."""
    kinds = site.measurable if site else []
    known = [kind for kind in kinds if kind is kinds[0] or gpu_lines(kind)[0] != _CHANGE]
    written = {kind.partition for kind in known}
    partitions = dict.fromkeys(kind.partition for kind in (site.kinds if site else ()))
    return _render(
        "clusters.yaml.j2",
        site=site,
        entries=[_entry(kind, kinds) for kind in known],
        gpus=", ".join(GPUS),
        others=[name for name in partitions if name not in written],
    )


def _entry(kind: NodeKind, kinds: list[NodeKind]) -> dict[str, object]:
    """The template's lines about one kind of node; the first of `kinds` is `mine`."""
    is_mixed = sum(other.partition == kind.partition for other in kinds) > 1
    name = f"mine-{kind.partition}"
    if is_mixed:
        name += f"-{kind.gpu_type or 'gpu'}x{kind.gpus_per_node}"
    return {
        "name": "mine" if kind is kinds[0] else re.sub(r"[^\w.-]", "-", name),
        "kind": kind,
        "gpu": gpu_lines(kind),
        "per_node": kind.gpus_per_node or kind.cpus_per_node,
        "cores": kind.cpus_per_node // kind.gpus_per_node if kind.gpus_per_node else None,
        "gres": f"gpu:{kind.gpu_type}" if is_mixed and kind.gpu_type else None,
    }


def gpu_lines(kind: NodeKind) -> tuple[str, str]:
    """The catalogue's name of the GPUs of a kind of node, and a comment about its source."""
    if not kind.gpus_per_node:
        return "cpu", "sinfo: no GPUs in this partition; ranks share a node's cores"
    name = (kind.gpu_type or "").lower().replace("_", "-")
    alike = [gpu for gpu in GPUS if name and gpu.startswith(name)]
    if not alike:  # Slurm may take the driver's name of a GPU
        given, words = set(name.split("-")), {gpu: set(gpu.split("-")) for gpu in GPUS}
        alike = sorted((gpu for gpu in GPUS if given >= words[gpu]), key=len)[-1:]
        of_any_size = {gpu: {w for w in words[gpu] if not w.endswith("gb")} for gpu in GPUS}
        alike = alike or [gpu for gpu in GPUS if given >= of_any_size[gpu]]
    origin = f"sinfo: gpu:{kind.gpu_type}" if kind.gpu_type else "sinfo: gpu, of no type"
    if not alike:
        return _CHANGE, f"{origin}; one of {', '.join(gpu for gpu in GPUS if gpu != 'cpu')}"
    if len(alike) > 1:
        return alike[0], f"{origin}; it may be {' or '.join(alike[1:])}: look with nvidia-smi"
    return alike[0], origin


def _study_facts(site: SlurmSite | None, model: ConfigModel | None) -> dict[str, object]:
    on_gpus = site is not None and site.best.gpus_per_node > 0
    per_node, nodes = 2, 1  # ranks on this machine
    if site is not None:
        per_node = site.best.gpus_per_node or min(4, site.best.cpus_per_node)
        nodes = site.best.nodes if on_gpus else 1
    sizes = [size for size in (1, 2, 4, 8, 16) if size < per_node]
    sizes += [per_node * count for count in (1, 2, 4) if count <= nodes]
    name = "tinyllama_1b" if on_gpus else "tiny"
    if model is not None:
        name = f"../{model.name}" if model.path.suffix == ".json" else model.name
    cluster = "local" if site is None else "mine"
    return {"on_gpus": on_gpus, "sizes": sizes, "cluster": cluster, "model": name}


def _text(name: str) -> str:
    return (SHIPPED / _TEMPLATES / name).read_text(encoding="utf-8")


def _render(name: str, **facts: object) -> str:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    return environment.from_string(_text(name)).render(**facts)
