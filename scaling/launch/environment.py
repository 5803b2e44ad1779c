"""What the environment tells every rank of a point."""

from collections.abc import Mapping

from scaling.launch.starters import Placed


def rank_environment(point: Placed, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment that all ranks share.

    A rank on a CPU stands for one device, so it gets one thread at every world size, or as many as
    SCALING_THREADS says: were it all cores divided by ranks, adding ranks would shrink the device.
    OMP_NUM_THREADS does not say: Snakemake tells each job all cores of the machine by it, and ranks
    whose threads wait for each other's cores are several times slower.
    """
    environment = dict(inherited)
    # Nothing is compiled here, but DeepSpeed decorates an optimizer it does not use with
    # torch.compile, which imports the compiler: a second and a half of every rank's start.
    environment.setdefault("TORCHDYNAMO_DISABLE", "1")
    environment["PYTHONUNBUFFERED"] = "1"  # a killed rank's log keeps its last words
    if point.gpu == "cpu":
        environment["OMP_NUM_THREADS"] = inherited.get("SCALING_THREADS", "1")
        environment["DS_ACCELERATOR"] = "cpu"
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment
