"""`scaling new`: make a folder to run studies in; what ships stays in the installed package."""

import shutil
from pathlib import Path

import jinja2

from scaling.cluster.hardware import GPUS
from scaling.cluster.slurm_site import Partition, SlurmSite
from scaling.errors import InputError
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

    Raises:
        InputError: one of these exists already; then nothing is written.
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
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name in copies:
        source = SHIPPED / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    return written


def clusters_text(site: SlurmSite | None) -> str:
    """The clusters.yaml of a new folder; each line of the site's entry names its source."""
    partition = site.best if site else None
    return _render(
        "clusters.yaml.j2",
        site=site,
        partition=partition,
        gpu=gpu_lines(partition) if partition else None,
        gpus=", ".join(GPUS),
        gpus_per_node=(partition.gpus_per_node or partition.cpus_per_node) if partition else None,
        others=[p.name for p in site.partitions if p is not partition] if site else [],
    )


def gpu_lines(partition: Partition) -> tuple[str, str]:
    """The catalogue's name of a partition's GPUs, and a comment about its source."""
    if not partition.gpus_per_node:
        return "cpu", "sinfo: no GPUs in this partition; ranks share a node's cores"
    name = (partition.gpu_type or "").lower().replace("_", "-")
    alike = [gpu for gpu in GPUS if name and gpu.startswith(name)]
    if not alike:  # Slurm may take the driver's name of a GPU
        given, words = set(name.split("-")), {gpu: set(gpu.split("-")) for gpu in GPUS}
        alike = sorted((gpu for gpu in GPUS if given >= words[gpu]), key=len)[-1:]
        of_any_size = {gpu: {w for w in words[gpu] if not w.endswith("gb")} for gpu in GPUS}
        alike = alike or [gpu for gpu in GPUS if given >= of_any_size[gpu]]
    origin = f"sinfo: gpu:{partition.gpu_type}" if partition.gpu_type else "sinfo: gpu, of no type"
    if not alike:
        return _CHANGE, f"{origin}; one of {', '.join(gpu for gpu in GPUS if gpu != 'cpu')}"
    if len(alike) > 1:
        return alike[0], f"{origin}; it may be {' or '.join(alike[1:])}: look with nvidia-smi"
    return alike[0], origin


def _study_facts(site: SlurmSite | None, model: ConfigModel | None) -> dict[str, object]:
    on_gpus = site is not None and site.best.gpus_per_node > 0
    per_node, nodes = (site.best.gpus_per_node, site.best.nodes) if site and on_gpus else (2, 1)
    sizes = [size for size in (1, 2, 4, 8, 16) if size < per_node]
    sizes += [per_node * count for count in (1, 2, 4) if count <= nodes]
    name = "tinyllama_1b" if on_gpus else "tiny"
    if model is not None:
        name = f"../{model.name}" if model.path.suffix == ".json" else model.name
    cluster = "mine" if on_gpus else "local"
    return {"on_gpus": on_gpus, "sizes": sizes, "cluster": cluster, "model": name}


def _text(name: str) -> str:
    return (SHIPPED / _TEMPLATES / name).read_text(encoding="utf-8")


def _render(name: str, **facts: object) -> str:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    return environment.from_string(_text(name)).render(**facts)
