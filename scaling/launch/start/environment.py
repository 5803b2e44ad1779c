"""Environment variables that all ranks of a point share."""

from collections.abc import Mapping

from scaling.cluster.hardware import gpu_named
from scaling.errors import InputError, shortened
from scaling.launch.start.starter import PointOrProbe
from scaling.study.point import Point

_THREADS = "SCALING_THREADS"
# Aids for debugging, left in many a shell, with which steps are slower or layers run uncompiled and
# a row would not say so.
_FOR_DEBUGGING = {
    "CUDA_LAUNCH_BLOCKING", "PYTORCH_NO_CUDA_MEMORY_CACHING", "TORCH_CUDA_SANITIZER",
    "TORCH_DISTRIBUTED_DEBUG", "TORCH_NCCL_BLOCKING_WAIT", "NCCL_DEBUG_SUBSYS",
    "TORCHDYNAMO_SUPPRESS_ERRORS",
}  # fmt: skip
_ALLOCATOR = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}  # new name and old name


def rank_environment(point: PointOrProbe, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment that all ranks share; `cluster.node` adds what depends on a rank's node.

    A rank on a CPU stands for one device, so it gets one thread at every world size, or
    SCALING_THREADS of them. Sharing all cores out among ranks would shrink the device as ranks are
    added. OMP_NUM_THREADS is not used for that: Snakemake sets it to all cores of the machine for
    each job, and ranks that compete for cores are several times slower.

    Raises:
        InputError: SCALING_THREADS is no number of threads, which libraries would ignore.
    """
    threads = inherited.get(_THREADS) or "1"
    if not (threads.isascii() and threads.isdigit() and int(threads) > 0):
        raise InputError(f"{_THREADS}={shortened(threads)}: must be a whole number of at least 1")
    environment = {name: v for name, v in inherited.items() if name not in _FOR_DEBUGGING}
    # Nothing is compiled here, but an engine may decorate an optimizer it does not use with
    # torch.compile, which imports the compiler: a second and a half of every rank's start.
    environment.setdefault("TORCHDYNAMO_DISABLE", "1")
    environment["PYTHONUNBUFFERED"] = "1"  # a killed rank's log keeps its last words
    if point.gpu == "cpu":
        environment["OMP_NUM_THREADS"] = threads
        environment["DS_ACCELERATOR"] = "cpu"
        environment["CUDA_VISIBLE_DEVICES"] = ""
        return environment
    if gpu_named(point.gpu).vendor == "nvidia":
        environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as NVML and the kernel count
        # fragmented memory runs out well below the device's size
        if not _ALLOCATOR & environment.keys():
            environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
        # The sum of an input's gradient over tp is started before the products of weights, and so
        # runs before them only from one queue (Megatron-LM). FSDP2's streams need several.
        if isinstance(point, Point) and point.layout.tp > 1 and point.layout.engine == "deepspeed":
            environment.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    return environment
