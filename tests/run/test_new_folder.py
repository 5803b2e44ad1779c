"""`scaling new`: a folder whose study plans as it is, with the site's own cluster."""

import errno
import os
import shutil

import pytest

from scaling.cluster.slurm_site import NodeKind, SlurmSite
from scaling.errors import InputError
from scaling.run.new_folder import clusters_text, make_folder
from scaling.study.grid import expand_grid
from scaling.study.load import load_clusters, load_study


def kind(**facts):
    usual = {
        "partition": "gpu", "default": True, "nodes": 14, "cpus_per_node": 96, "memory_mb": 2000000,
        "gpus_per_node": 8, "gpu_type": "h100", "max_minutes": 1440,
    }  # fmt: skip
    return NodeKind(**(usual | facts))


def site(gpu_type="h100", gpus=8, nodes=14, **facts):
    gpu = kind(gpu_type=gpu_type, gpus_per_node=gpus, nodes=nodes)
    other = kind(
        partition="debug", default=False, nodes=2, cpus_per_node=64, gpus_per_node=0,
        gpu_type=None, max_minutes=30,
    )  # fmt: skip
    usual = {"kinds": (gpu, other), "accounts": ("ml", "bio"), "qos": ("normal",)}
    return SlurmSite(**(usual | facts))


@pytest.mark.parametrize(
    ("known", "least"),
    [
        (None, 4),
        (site(), 4),
        (site(gpus=0, gpu_type=None), 4),
        (site(nodes=1), 4),
        (SlurmSite(kinds=(kind(gpus_per_node=0, gpu_type=None, cpus_per_node=1),)), 1),
    ],
)
def test_the_first_study_of_a_new_folder_plans_as_it_is(tmp_path, known, least):
    make_folder(tmp_path / "new", known)
    config = tmp_path / "new" / "config"
    points = expand_grid(load_study(config / "studies" / "first.yaml", config=config)).points
    assert len(points) >= least
    assert {point.cluster for point in points} == {"mine" if known else "local"}
    on_gpus = known is not None and known.best.gpus_per_node > 0
    assert {point.model for point in points} == {"tinyllama_1b" if on_gpus else "tiny"}


def test_other_gpus_of_the_site_are_clusters_of_their_own(tmp_path):
    path = tmp_path / "clusters.yaml"
    kinds = (
        kind(),
        kind(gpu_type="a100", gpus_per_node=4, nodes=2),
        kind(partition="old", default=False, gpu_type="v100-32gb", gpus_per_node=4),
        kind(partition="odd", default=False, gpu_type="tesla"),
    )
    path.write_text(clusters_text(site(kinds=kinds, default_memory="DefMemPerCPU=512")))
    clusters = load_clusters(path)
    assert clusters.keys() == {"local", "mine", "mine-gpu-a100x4", "mine-old"}
    assert clusters["mine"].slurm.gres == "gpu:h100"
    assert clusters["mine-gpu-a100x4"].slurm.gres == "gpu:a100"
    assert clusters["mine-old"].slurm.gres is None
    assert "DefMemPerCPU=512" in path.read_text()
    assert "Not described here" in path.read_text()


def test_allocations_stay_within_the_limits_of_the_site(tmp_path):
    kinds = (kind(max_minutes=60),)
    make_folder(tmp_path / "new", site(kinds=kinds, max_submit_jobs=4))
    profile = (tmp_path / "new/config/profiles/slurm/config.yaml").read_text()
    assert "submitit-pack-minutes: 60 # sinfo: a job's time limit\n" in profile
    assert "submitit-max-allocations: 4 # sacctmgr: MaxSubmitJobs\n" in profile


def test_a_gpu_of_two_sizes_is_said_to_be_one_or_the_other():
    assert "it may be a100-80gb" in clusters_text(site(gpu_type="a100"))


@pytest.mark.parametrize(
    ("gpu_type", "gpu"),
    [
        ("nvidia_h100_80gb_hbm3", "h100-80gb"),  # as Slurm's AutoDetect=nvml names them
        ("nvidia_a100-sxm4-80gb", "a100-80gb"),
        ("nvidia_a100_80gb_pcie", "a100-pcie-80gb"),
        ("nvidia_gh200_480gb", "gh200-96gb"),
        ("tesla_v100-sxm2-32gb", "v100-32gb"),
    ],
)
def test_a_gpu_that_slurm_calls_as_the_driver_does_is_found(gpu_type, gpu):
    assert f"gpu: {gpu} " in clusters_text(site(gpu_type=gpu_type))


def test_a_gpu_that_the_catalogue_has_not_is_left_to_be_named(tmp_path):
    path = tmp_path / "clusters.yaml"
    path.write_text(clusters_text(site(gpu_type="tesla")))
    with pytest.raises(InputError, match="CHANGE-ME"):
        load_clusters(path)


def test_nothing_is_written_into_a_folder_that_has_a_config(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.yaml").write_text("mine: {}\n")
    with pytest.raises(InputError, match=r"models\.yaml: exists already"):
        make_folder(tmp_path, None)
    assert not (tmp_path / "Snakefile").exists()


def test_a_folder_that_cannot_be_written_whole_is_left_as_it_was(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full_disk:
        full_disk.setattr(shutil, "copytree", full)
        with pytest.raises(InputError, match="new: cannot be written: No space left on device"):
            make_folder(tmp_path / "new", None)
    assert not [*tmp_path.iterdir()]
    assert make_folder(tmp_path / "new", None)
