# Requests of a workflow that does not know this executor. Each rule leaves what it got.
rule all:
    input:
        "threads.txt",
        "gpu.txt",
        "tasks.txt",
        "shadowed.txt",
        "run.txt",
        "kept.txt",
        "grown.txt",
        "group.txt",
        "chosen.txt",


rule threads:
    output:
        "threads.txt",
    threads: 2
    resources:
        mem_mb=200,
    shell:
        "echo $SLURM_CPUS_PER_TASK {threads} $SLURM_MEM_PER_NODE > {output}"


rule gpu:
    output:
        "gpu.txt",
    resources:
        gpu=2,
    shell:
        "echo $CUDA_VISIBLE_DEVICES > {output}"


rule tasks:
    output:
        "tasks.txt",
    resources:
        tasks=3,
        nodes=3,
        mpi="srun",
    shell:
        "{resources.mpi} -n {resources.tasks} hostname | sort > {output}"


rule shadowed:
    output:
        "shadowed.txt",
    shadow:
        "minimal"
    shell:
        "touch litter; echo shadowed > {output}"


rule run:
    output:
        "run.txt",
    run:
        with open(output[0], "w") as file:
            file.write("python\n")


rule passing:
    output:
        temp("passing.txt"),
    shell:
        "echo kept > {output}"


rule kept:
    input:
        "passing.txt",
    output:
        "kept.txt",
    shell:
        "cp {input} {output}"


rule grown:
    output:
        "grown.txt",
    retries: 2
    resources:
        mem_mb=lambda wildcards, attempt: 100 * attempt,
    shell:
        "echo $SLURM_MEM_PER_NODE >> attempts; test {resources.mem_mb} -ge 200; cp attempts {output}"


rule member:
    output:
        "member.{number}.txt",
    group:
        "both"
    shell:  # no two at once
        "mkdir busy; sleep 1; rmdir busy; echo $SLURM_JOB_ID > {output}"


rule group:
    input:
        "member.1.txt",
        "member.2.txt",
    output:
        "group.txt",
    group:
        "both"
    shell:
        "cat {input} > {output}; echo $SLURM_JOB_ID >> {output}"


checkpoint choose:
    output:
        directory("choices"),
    shell:
        "mkdir {output}; touch {output}/a {output}/b"


rule choice:
    output:
        "choice.{name}.txt",
    shell:
        "echo {wildcards.name} > {output}"


def choices(wildcards):
    folder = checkpoints.choose.get().output[0]
    names = glob_wildcards(f"{folder}/{{name}}").name
    visible = sorted(name for name in names if not name.startswith("."))
    return expand("choice.{name}.txt", name=visible)


rule chosen:
    input:
        choices,
    output:
        "chosen.txt",
    shell:
        "cat {input} > {output}"
