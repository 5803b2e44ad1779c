"""A study file, the models and the clusters it names: YAML in, checked values out.

Whatever is wrong with a file becomes one sentence (`InputError`) that names the file, the key, the
value and what would be right.
"""

import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from scaling.errors import InputError, did_you_mean
from scaling.hardware import Cluster, gpu_named
from scaling.layout import Attention, Precision, ZeroStage
from scaling.measurement import StudyKind
from scaling.shapes import ActivationCheckpointing, Family, ModelShape
from scaling.site import Slurm
from scaling.study_errors import SAFE, sentence

CONFIG = Path("config")
T = TypeVar("T")
SAFE_NAME = re.compile(SAFE)
GBIT = 1e9 / 8  # bytes


Mode = Literal["measure", "predict"]


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


Count = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
Name = Annotated[str, Field(strict=True, pattern=f"^{SAFE_NAME.pattern}$")]
Flag = Annotated[bool, Field(strict=True)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=7 * 86_400, allow_inf_nan=False)]

# One value or a list of them.
Counts = Annotated[list[Count], BeforeValidator(_as_list), Field(min_length=1)]
Names = Annotated[list[Name], BeforeValidator(_as_list), Field(min_length=1)]
Flags = Annotated[list[Flag], BeforeValidator(_as_list), Field(min_length=1)]
Stages = Annotated[list[ZeroStage], BeforeValidator(_as_list), Field(min_length=1)]
Checkpointings = Annotated[
    list[ActivationCheckpointing], BeforeValidator(_as_list), Field(min_length=1)
]
Attentions = Annotated[list[Attention], BeforeValidator(_as_list), Field(min_length=1)]
Precisions = Annotated[list[Precision], BeforeValidator(_as_list), Field(min_length=1)]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Axes(_File):
    """Values of the grid's axes; a block of `layouts` overrides those of `axes`."""

    model: Names | None = None
    cluster: Names | None = None
    world_size: Counts | None = None
    global_batch_size: Counts | None = None
    batch_size_per_gpu: Counts | None = None
    seq_length: Counts | None = None
    tp: Counts | None = None
    pp: Counts | None = None
    cp: Counts | None = None
    zero_stage: Stages | None = None
    sequence_parallel: Flags | None = None
    micro_batch_size: Counts | None = None
    activation_checkpointing: Checkpointings | None = None
    attention: Attentions | None = None
    fused_norm: Flags | None = None
    precision: Precisions | None = None

    def given(self) -> dict[str, tuple[Any, ...]]:
        """The axes somebody wrote down, each value once."""
        values = {name: getattr(self, name) for name in sorted(self.model_fields_set)}
        return {name: tuple(dict.fromkeys(listed)) for name, listed in values.items() if listed}


class Measure(_File):
    """How each point is measured."""

    warmup_steps: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 3
    measured_steps: Annotated[int, Field(strict=True, ge=10, le=100_000)] = 10
    repeats: Annotated[int, Field(strict=True, ge=1, le=100)] = 1
    time_limit_s: Seconds = 600.0
    measure_oom: Flag = False
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**31)] = 0


class StudyFile(_File):
    """config/studies/<study>.yaml."""

    title: Annotated[str, Field(strict=True, min_length=1, max_length=200)]
    kind: StudyKind
    mode: Mode = "measure"
    axes: Axes = Axes()
    layouts: Annotated[list[Axes], Field(min_length=1)] = [Axes()]
    measure: Measure = Measure()
    max_points: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 5_000


# What an axis means when neither `axes` nor the block says anything.
DEFAULTS: dict[str, tuple[Any, ...]] = {
    "tp": (1,),
    "pp": (1,),
    "cp": (1,),
    "zero_stage": (0,),
    "sequence_parallel": (False,),
    "micro_batch_size": (1,),
    "activation_checkpointing": ("none",),
    "attention": ("flash2",),
    "fused_norm": (False,),
    "precision": ("bf16",),
}


class ModelEntry(_File):
    """One model of config/models.yaml; only what differs from the defaults is said."""

    family: Family = "llama"
    num_layers: Count
    num_encoder_layers: Annotated[int, Field(strict=True, ge=0)] = 0
    hidden_size: Count
    num_heads: Count
    num_kv_heads: Count | None = None
    head_dim: Count | None = None
    ffn_hidden_size: Count
    gated_mlp: Flag | None = None
    vocab_size: Count
    tied_embeddings: Flag = False
    max_positions: Annotated[int, Field(strict=True, ge=0)] = 0
    source: Annotated[str, Field(strict=True, min_length=1)]

    @model_validator(mode="after")
    def _fits_together(self) -> "ModelEntry":
        if self.head_dim is None and self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not divisible by num_heads={self.num_heads}; "
                "say head_dim if that is meant"
            )
        if self.num_heads % (self.num_kv_heads or self.num_heads):
            raise ValueError(
                f"num_heads={self.num_heads} is not divisible by num_kv_heads={self.num_kv_heads}"
            )
        if (self.family == "t5") != (self.num_encoder_layers > 0):
            raise ValueError(
                f"num_encoder_layers={self.num_encoder_layers}: family t5 needs at least 1, "
                "the others have none"
            )
        if (self.family == "gpt") != (self.max_positions > 0):
            raise ValueError(
                f"max_positions={self.max_positions}: family gpt needs at least 1, "
                "the others have none"
            )
        if self.family == "llama" and (self.head_dim or self.hidden_size // self.num_heads) % 2:
            raise ValueError("rotary positions need an even head_dim")
        return self

    def shape(self) -> ModelShape:
        """The shape with every default filled in."""
        said = self.model_dump(exclude={"source", "num_kv_heads", "head_dim", "gated_mlp"})
        return ModelShape(
            **said,
            num_kv_heads=self.num_kv_heads or self.num_heads,
            head_dim=self.head_dim or self.hidden_size // self.num_heads,
            gated_mlp=self.family != "gpt" if self.gated_mlp is None else self.gated_mlp,
        )


Word = Annotated[str, Field(strict=True, min_length=1, pattern=r"^[^\s;&|`$]+$")]
Line = Annotated[str, Field(strict=True, min_length=1, pattern=r"^[^\r\n]+$")]


class SlurmEntry(_File):
    """What the site's Slurm wants to be told; set-up lines are the site's own shell."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Annotated[str, Field(strict=True, pattern=r"^[\w&|,*\[\]().-]+$")] | None = None
    reservation: Word | None = None
    exclusive: Flag = False
    gres: Annotated[str, Field(strict=True, pattern=r"^[\w.-]+(:[\w.-]+)?$")] | None = None
    cpus_per_task: Count | None = None
    mem_mb: Annotated[int, Field(strict=True, ge=0)] | None = None
    setup: list[Line] = []
    srun_args: list[Line] = []
    extra: list[Line] = []

    def site(self) -> Slurm:
        """The same as values that do not change."""
        return Slurm(
            **self.model_dump(exclude={"setup", "srun_args", "extra"}),
            setup=tuple(self.setup),
            srun_args=tuple(self.srun_args),
            extra=tuple(self.extra),
        )


class ClusterEntry(_File):
    """One cluster of config/clusters.yaml."""

    gpu: Name
    gpus_per_node: Count
    nodes: Count
    node_link_gbit_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    usd_per_gpu_hour: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    slurm: SlurmEntry = SlurmEntry()
    source: Annotated[str, Field(strict=True, min_length=1)]

    def cluster(self) -> Cluster:
        """The cluster in bytes and seconds."""
        gbit = self.node_link_gbit_per_s
        return Cluster(
            gpu=gpu_named(self.gpu).name,
            gpus_per_node=self.gpus_per_node,
            nodes=self.nodes,
            node_link_bytes_per_s=None if gbit is None else gbit * GBIT,
            usd_per_gpu_hour=self.usd_per_gpu_hour,
            slurm=self.slurm.site(),
            source=self.source,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A checked study: the question, with every model and cluster it names."""

    name: str
    path: Path
    title: str
    kind: StudyKind
    mode: Mode
    axes: dict[str, tuple[Any, ...]]  # defaults and the file's `axes`
    layouts: tuple[dict[str, tuple[Any, ...]], ...]  # blocks that override them
    measure: Measure
    max_points: int
    models: dict[str, ModelShape]
    clusters: dict[str, Cluster]


def load_models(path: Path = CONFIG / "models.yaml") -> dict[str, ModelShape]:
    """The named model shapes.

    Raises:
        InputError: the file is missing or something in it is wrong.
    """
    entries = _validated(path, dict[Name, ModelEntry])
    return {name: entry.shape() for name, entry in entries.items()}


def load_clusters(path: Path = CONFIG / "clusters.yaml") -> dict[str, Cluster]:
    """The named clusters.

    Raises:
        InputError: the file is missing, or something in it is wrong, or a GPU is not known.
    """
    clusters = {}
    for name, entry in _validated(path, dict[Name, ClusterEntry]).items():
        try:
            clusters[name] = entry.cluster()
        except InputError as error:
            raise InputError(f"{path}: {name}.gpu: {error}") from None
    return clusters


def load_study(study: str | Path, config: Path = CONFIG) -> Study:
    """The study of that name in `config/studies`, or in that YAML file.

    Raises:
        InputError: there is no such study, or something in it is wrong.
    """
    path = study_path(study, config)
    if not SAFE_NAME.fullmatch(path.stem):
        raise InputError(
            f"{path}: the file name {path.stem!r} names the study and its results, so it must be "
            "letters, digits, '_', '-' and '.' only, at most 64"
        )
    file = _validated(path, StudyFile)
    found = Study(
        name=path.stem,
        path=path,
        title=file.title,
        kind=file.kind,
        mode=file.mode,
        axes={**DEFAULTS, **file.axes.given()},
        layouts=tuple(block.given() for block in file.layouts),
        measure=file.measure,
        max_points=file.max_points,
        models=load_models(config / "models.yaml"),
        clusters=load_clusters(config / "clusters.yaml"),
    )
    _check_axes(found)
    return found


def study_path(study: str | Path, config: Path = CONFIG) -> Path:
    """Where the study's YAML lies: a path that ends in .yaml is taken as it is."""
    path = Path(study)
    if path.suffix not in (".yaml", ".yml"):
        path = config / "studies" / f"{study}.yaml"
    if not path.is_file():
        names = [found.stem for found in (config / "studies").glob("*.yaml")]
        raise InputError(f"{path}: no such study: {did_you_mean(Path(study).stem, names)}")
    return path


def _check_axes(study: Study) -> None:
    batch = "global_batch_size" if study.kind == "strong" else "batch_size_per_gpu"
    other = "batch_size_per_gpu" if study.kind == "strong" else "global_batch_size"
    for index, block in enumerate(study.layouts):
        axes = {**study.axes, **block}
        if other in axes:
            where = f"layouts[{index}]" if other in block else "axes"
            raise InputError(
                f"{study.path}: {where}.{other}={list(axes[other])}: kind: {study.kind} fixes "
                f"{batch} instead"
            )
        for name in ("model", "cluster", "world_size", "seq_length", batch):
            if name not in axes:
                raise InputError(
                    f"{study.path}: axes.{name}: is missing, and layouts[{index}] does not "
                    "give it either; a study needs one value or a list"
                )
        for key, known in (("model", study.models), ("cluster", study.clusters)):
            for value in axes[key]:
                if value not in known:
                    where = f"layouts[{index}]" if key in block else "axes"
                    raise InputError(
                        f"{study.path}: {where}.{key}: unknown {key} {value!r}: "
                        f"{did_you_mean(value, known)}"
                    )
    clusters = {name for block in study.layouts for name in {**study.axes, **block}["cluster"]}
    if study.mode == "measure" and len(clusters) > 1:
        raise InputError(
            f"{study.path}: axes.cluster={sorted(clusters)}: a study with mode: measure runs on "
            "one cluster; write one study file for each"
        )


class _UniqueKeys(yaml.SafeLoader):
    """Safe YAML that refuses a key written twice instead of keeping the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice!r} is written twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def _validated(path: Path, schema: type[T]) -> T:
    """The file's content as `schema`.

    Raises:
        InputError: it cannot be read, is not YAML, or does not fit the schema.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    try:
        content = yaml.load(text, Loader=_UniqueKeys)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise InputError(f"{path}: {where}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: must hold keys and values, not {type(content).__name__}")
    try:
        return TypeAdapter(schema).validate_python(content)
    except ValidationError as error:
        raise InputError(f"{path}: {sentence(error, schema)}") from None
