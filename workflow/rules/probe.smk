# What nodes, their memory and their links reach, before anything is measured on them. It leaves a
# table whatever the outcome; a probe that failed stops nobody.
if PROBED:

    rule probe:
        input:
            # ancient: a new point repeats no probe, unless it brings shapes of its own
            ancient(f"{RESULTS}/points.parquet"),
        output:
            PROBES,
            f"{RESULTS}/hosts.json",
        log:
            f"{LOGS}/probe.log",
        threads: workflow.cores or 1
        resources:
            **PROBE_DEVICES,
            **site.resources(SITE),
            nodes=PROBE.world_size // PROBE.ranks_per_node,
            tasks_per_node=PROBE.ranks_per_node,
            # start-up and clean-up come on top
            runtime=int(PROBE.time_limit_s // 60) + 10,
        params:
            plan=f"{RESULTS}/probe.json",
            asked=PROBE.digest,
        shell:
            "{PYTHON} -m scaling probe {params.plan} {output[0]} > {log} 2>&1"
