"""A site's settings reach the rule's resources."""

import pytest
import yaml

from scaling.errors import InputError
from scaling.run.plan_writer import slurm_resources
from scaling.study.load import load_clusters
from tests.conftest import CLUSTERS
from tests.workflow.test_dag import two_nodes_asked

SAID = {
    "partition": "gpu",
    "account": "ml",
    "exclusive": True,
    "cpus_per_task": 12,
    "mem_mb": 0,
    "dependency": "afterok:1234",
    "setup": ["module load cuda/12.8", "source /apps/site.sh"],
    "srun_args": ["--container-image=/apps/torch image.sqsh"],
    "extra": ["--exclude=node7", "--switches=1"],
}


def test_all_memory_is_a_value_and_a_blank_keeps_its_quotes(config):
    (config / "clusters.yaml").write_text(
        yaml.safe_dump({"here": {**CLUSTERS["here"], "slurm": SAID}})
    )
    assert slurm_resources(load_clusters(config / "clusters.yaml")["here"].slurm) == {
        "slurm_partition": "gpu",
        "slurm_account": "ml",
        "slurm_exclusive": 1,
        "cpus_per_task": 12,
        "mem_mb": 0,
        "slurm_dependency": "afterok:1234",
        "slurm_setup": "module load cuda/12.8\nsource /apps/site.sh",
        "srun_args": "'--container-image=/apps/torch image.sqsh'",
        "slurm_extra": "--exclude=node7 --switches=1",
    }


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"partitions": "gpu"}, "unknown key 'partitions': did you mean 'partition'?"),
        ({"partition": "gpu; reboot"}, "must be one word without blanks or signs of the shell"),
        (
            {"gres": "gpu:h100:8:9"},
            "slurm.gres='gpu:h100:8:9': must be a name and a type without a",
        ),
        ({"setup": "module load cuda"}, "slurm.setup='module load cuda': must be a list"),
        ({"cpus_per_task": 0}, "slurm.cpus_per_task=0: must be at least 1"),
        ({"setup": ["a\nb"]}, "slurm.setup[0]='a\\nb': must be one line of text"),
        ({"srun_args": [""]}, "slurm.srun_args[0]='': must not be empty"),
        ({"constraint": "a; b"}, "constraint='a; b': must be features of nodes without blanks"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(said, sentence, config):
    path = config / "clusters.yaml"
    path.write_text(yaml.safe_dump({"here": {**CLUSTERS["here"], "slurm": said}}))
    with pytest.raises(InputError) as told:
        load_clusters(path)
    assert sentence in str(told.value)


@pytest.mark.snakemake
def test_a_jobs_resources_are_the_sites_and_the_layouts(project):
    clusters = yaml.safe_load((project / "config" / "clusters.yaml").read_text())
    clusters["h100-80gb-dgx"]["slurm"] = {**SAID, "gres": "gpu:h100"}
    (project / "config" / "clusters.yaml").write_text(yaml.safe_dump(clusters))
    printed = two_nodes_asked(project)
    for resource in ("nodes=2", "tasks_per_node=8", "gres=gpu:h100:8", "slurm_partition=gpu"):
        assert resource in printed
    assert "gpus_per_node" not in printed
