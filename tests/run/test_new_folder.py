"""`scaling new`: a folder whose study plans as it is, with the site's own cluster."""

import pytest

from scaling.cluster.slurm_site import Partition, SlurmSite
from scaling.errors import InputError
from scaling.run.new_folder import clusters_text, make_folder
from scaling.study.grid import expand_grid
from scaling.study.load import load_clusters, load_study


def site(gpu_type="h100", gpus=8, nodes=14):
    gpu = Partition(
        name="gpu", default=True, nodes=nodes, cpus_per_node=96, gpus_per_node=gpus,
        gpu_type=gpu_type, time_limit="1-00:00:00",
    )  # fmt: skip
    other = Partition(
        name="debug", default=False, nodes=2, cpus_per_node=64, gpus_per_node=0,
        gpu_type=None, time_limit="30:00",
    )  # fmt: skip
    return SlurmSite(partitions=(gpu, other), accounts=("ml", "bio"), qos=("normal",))


@pytest.mark.parametrize("known", [None, site(), site(gpus=0, gpu_type=None), site(nodes=1)])
def test_the_first_study_of_a_new_folder_plans_as_it_is(tmp_path, known):
    make_folder(tmp_path / "new", known)
    config = tmp_path / "new" / "config"
    points = expand_grid(load_study(config / "studies" / "first.yaml", config=config)).points
    assert len(points) >= 4
    on_gpus = known is not None and known.best.gpus_per_node > 0
    assert {point.cluster for point in points} == {"mine" if on_gpus else "local"}


def test_the_cluster_is_what_slurm_said_and_each_line_says_who_did(tmp_path):
    path = tmp_path / "clusters.yaml"
    path.write_text(clusters_text(site()))
    mine = load_clusters(path)["mine"]
    assert (mine.gpu, mine.gpus_per_node, mine.nodes) == ("h100-80gb", 8, 14)
    assert (mine.slurm.partition, mine.slurm.account) == ("gpu", "ml")
    entry = path.read_text().split("mine:")[1].splitlines()
    facts = [line for line in entry if ":" in line and not line.strip().startswith(("#", "s"))]
    assert facts
    assert all("sinfo" in line or "sacctmgr" in line for line in facts), facts


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
