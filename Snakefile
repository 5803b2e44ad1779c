# A scaling study, from its axes to its report:
#
#   config/studies/<study>.yaml            models x GPU counts x layouts
#     -> results/<study>/points/*.json     what each job needs           `scaling plan`, by common.smk
#     -> results/<study>/probes.parquet    what nodes and links reach    probe.smk
#     -> results/<study>/round<n>.parquet  what is worth measuring next  rounds.smk
#     -> results/<study>/rows/*.parquet    real training steps measured  measure.smk
#     -> results/<study>/predictions.parquet   calibrated on the rows    calibrate.smk predict.smk
#     -> results/<study>/tables/*.parquet  DuckDB runs reports/sql/      tabulate.smk
#     -> results/<study>/report.html       charts and their captions     report.smk
#
# On this machine:  snakemake --profile config/profiles/local --config study=quickstart
# On a cluster:     snakemake --profile config/profiles/slurm --config study=NAME


# software of all rules in one file, built by apptainer.def; used with `--sdm apptainer` only
container: "training-scaling.sif"


include: "workflow/rules/common.smk"
include: "workflow/rules/probe.smk"
include: "workflow/rules/rounds.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/calibrate.smk"
include: "workflow/rules/predict.smk"
include: "workflow/rules/tabulate.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        # rows too: one that was moved must be measured again even if the report exists
        rows,
        # and tables: if these could not be made, an older report is not enough
        rules.tabulate.output,
        str(STUDY.report),
