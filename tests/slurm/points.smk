# Trivial points for the tests of the executor. points.json says of each:
#   seconds    how long it works          command   what it does instead
#   and any resource of the executor by its name
import json
from pathlib import Path

POINTS = json.loads(Path("points.json").read_text())


def resource(name, default):
    return lambda wildcards: POINTS[wildcards.point].get(name, default)


rule all:
    input:
        expand("out/{point}.txt", point=POINTS),


rule point:
    output:
        "out/{point}.txt",
    retries: config.get("retries", 0)
    resources:
        runtime=resource("runtime", 5),
        nodes=resource("nodes", 1),
        tasks_per_node=resource("tasks_per_node", 1),
        gpus_per_node=resource("gpus_per_node", 0),
        slurm_exclude=resource("slurm_exclude", ""),
        slurm_extra=resource("slurm_extra", ""),
        slurm_partition=resource("slurm_partition", "main"),
        slurm_account=resource("slurm_account", "lab"),
        slurm_qos=resource("slurm_qos", ""),
        slurm_dependency=resource("slurm_dependency", ""),
        slurm_setup=resource("slurm_setup", ""),
    params:
        command=lambda wildcards: POINTS[wildcards.point].get(
            "command", f"sleep {POINTS[wildcards.point].get('seconds', 0)}"
        ),
    shell:
        "bash point.sh {wildcards.point} {output} {params.command:q}"
