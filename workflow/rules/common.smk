# Paths and look-ups only. Imports here are loaded on every parse, so only the standard library.
import os
import shlex
import sys
from pathlib import Path

from scaling.errors import InputError
from scaling.study import inputs, paths, plan_file

try:
    if workflow.is_main_process:  # on a full disk Snakemake would end in a traceback
        paths.check_writable(Path(".snakemake/log/of-this-run"))
    asked, overrides, implied = inputs.asked_of(config)
    PLAN = plan_file.current_plan(asked, **overrides)
except InputError as error:
    print(error, file=sys.stderr)
    sys.exit(2)

# options by which a verb reads the same study
OVERRIDES = [word for key, value in overrides.items() for word in (f"--{key}", value)]
IMPLIED = "" if implied else " --no-implied"
NAME = Path(PLAN.study).stem
STUDY = paths.StudyPaths(paths.RESULTS / NAME)
LOGS = paths.LogPaths(paths.LOGS / NAME)
RESULTS = str(STUDY.folder)


def quoted(*words):
    # Quotes text for a shell line that Snakemake formats. Shell lines use no other global names, so
    # that this workflow can be a module of another.
    text = shlex.join(map(str, words))
    return text.replace("{", "{{").replace("}", "}}")


# inside a container (--software-deployment-method apptainer) the container's own program
CONTAINED = "apptainer" in map(str, workflow.deployment_settings.deployment_method)
SCALING = "scaling" if CONTAINED else quoted(sys.executable, "-m", "scaling")
NEXT = f"{SCALING} next {quoted(PLAN.study, *OVERRIDES)}"
REPORTS = inputs.local_or_shipped("reports")
SQL = sorted(str(path) for path in REPORTS.joinpath("sql").rglob("*.sql"))
TABLES = sorted(path.stem for path in REPORTS.joinpath("sql").glob("*.sql"))
TABLES += ["replication"] if PLAN.replicates else []
FINDINGS = (
    sorted(
        str(path)
        for path in REPORTS.joinpath("replication", PLAN.replicates).glob("*.sql")
    )
    if PLAN.replicates
    else []
)
REPORT_SOURCES = sorted(
    str(path)
    for kind in ("captions", "page")
    for path in REPORTS.joinpath(kind).rglob("*.*")
)


def row(point_id):
    return str(STUDY.row(point_id))


# a study that was measured without probes gets none
HAS_PROBES = PLAN.probe and (
    STUDY.probes.exists()
    or not all(Path(row(point_id)).exists() for point_id in PLAN.points)
)


def probes():
    return [str(STUDY.probes)] if HAS_PROBES else []


def probes_before(wildcards):
    # ancient, and only before the point has run, so that new probes repeat no measurement
    return [
        ancient(path) for path in probes() if not Path(row(wildcards.point)).exists()
    ]


def fixed_rows():
    return [
        row(point_id)
        for point_id, point in PLAN.points.items()
        if point.repeat < PLAN.fixed_repeats
    ]


def round_files(before=None):
    # a round is known once all rows of the earlier ones exist
    files, goes_on = [], bool(PLAN.rounds)
    while goes_on and len(files) + 1 != before:
        files.append(checkpoints.next_points.get(round=len(files) + 1).output[0])
        goes_on = round_of(files[-1])[2]
    return files


def round_of(path):
    # a heavy import, only needed where something is chosen
    from scaling.record.files import read_round

    return read_round(Path(path))


def rows_until(before=None):
    chosen = [
        row(point_id) for path in round_files(before) for point_id in round_of(path)[0]
    ]
    return fixed_rows() + chosen


def rows_before_round(wildcards):
    return [ancient(path) for path in rows_until(int(wildcards.round))]


def rows(wildcards):
    return rows_until() if PLAN.measured else []


def chosen(wildcards):
    return round_files() if PLAN.measured else []


def published():
    # rows from `scaling import`
    return [str(STUDY.published)] if STUDY.published.exists() else []


def predictions():
    return [str(STUDY.predictions)] if PLAN.predicted else []


def calibration():
    return [str(STUDY.calibration)] if PLAN.measured else []


# points run in the order of the plan
ORDER = {point_id: place for place, point_id in enumerate(PLAN.points)}


def run_priority(wildcards):
    return len(ORDER) - ORDER.get(wildcards.point, len(ORDER))


def allocation(wildcards):
    if wildcards.point in PLAN.points:
        return PLAN.points[wildcards.point]
    # added after planning, to run elsewhere; a heavy import
    from scaling.study.point import point_from_json

    return point_from_json(STUDY.point(wildcards.point).read_text()).allocation


def excluded_hosts(wildcards):
    # slow nodes, those of a lost attempt, and for a repeat those that its layout has run on
    wanted = allocation(wildcards)
    named = PLAN.exclude and (STUDY.probes.exists() or STUDY.excluded.exists())
    named = named or STUDY.retried.exists()
    if not named and not (wanted.repeat and wanted.repeat >= PLAN.fixed_repeats):
        return ""
    # a heavy import, only needed where there is something to exclude
    from scaling.run.sweep import hosts_to_avoid

    return ",".join(
        hosts_to_avoid(
            STUDY, wildcards.point, wanted, PLAN.nodes, slow_ones=PLAN.exclude
        )
    )


def nodes(wildcards):
    return allocation(wildcards).nodes


def ranks_per_node(wildcards):
    return allocation(wildcards).ranks_per_node


def runtime_minutes(wildcards):
    return allocation(wildcards).minutes


def devices_of(ranks):
    # some sites have a GRES name of their own for GPUs
    if PLAN.gres:
        return f"{PLAN.gres}:{ranks}"
    return ranks if PLAN.on_gpus else 0


def devices(wildcards):
    return devices_of(ranks_per_node(wildcards))


DEVICES = "gres" if PLAN.gres else "gpus_per_node"
