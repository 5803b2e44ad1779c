# Paths and look-ups, nothing else.
import shlex
import sys
from pathlib import Path

from scaling import choosing, grid, planning, site
from scaling.errors import InputError
from scaling.study import about, findings_of, load_study

try:
    STUDY = load_study(
        config.get("study", "quickstart"),
        mode=config.get("mode"),
        cluster=config.get("cluster"),
    )
    PLAN = planning.plan(STUDY)
    PROBE = planning.probe_of(STUDY, PLAN)
    FINDINGS = [str(path) for path in findings_of(STUDY)]
except InputError as error:
    print(error, file=sys.stderr)
    sys.exit(2)

# what a verb needs to read the same study
CHOSEN = " ".join(
    f"--{key} {shlex.quote(str(config[key]))}"
    for key in ("mode", "cluster")
    if key in config
)

POINTS = {point.point_id: point for point in PLAN.points}
RESULTS = f"results/{STUDY.name}"
LOGS = f"logs/{STUDY.name}"
PYTHON = sys.executable
SQL = sorted(str(path) for path in Path("reports/sql").rglob("*.sql"))
TABLES = sorted(path.stem for path in Path("reports/sql").glob("*.sql"))
TABLES += ["replication"] if FINDINGS else []


MEASURED = STUDY.mode == "measure"
SIZES = sorted({point.world_size for point in PLAN.points})
GUIDED = MEASURED and STUDY.measure.guided
GUIDE = STUDY.measure.guidance if GUIDED else ""
PREDICTED = planning.predictable(PLAN.points)
REPORT_SOURCES = sorted(
    str(path)
    for kind in ("captions", "page")
    for path in Path("reports", kind).rglob("*.*")
)


# a study that measures runs on one cluster
SITE = STUDY.clusters[PLAN.points[0].cluster].slurm


def row(point_id):
    return f"{RESULTS}/rows/{point_id}.parquet"


# a study that was measured without probes is left alone
PROBES = f"{RESULTS}/probes.parquet"
PROBED = PROBE and (
    Path(PROBES).exists()
    or not all(Path(row(point_id)).exists() for point_id in POINTS)
)


def probes():
    return [PROBES] if PROBED else []


def probes_before(wildcards):
    # ancient, and only before the point has run: new probes repeat no measurement
    return [
        ancient(path) for path in probes() if not Path(row(wildcards.point)).exists()
    ]


def chosen():
    return [f"{RESULTS}/chosen/{size}.parquet" for size in SIZES] if GUIDED else []


def rows_of(size):
    if GUIDED:
        made = checkpoints.choose.get(size=size).output[0]
        return [row(point_id) for point_id in choosing.chosen_ids(Path(made))]
    return [
        row(point_id) for point_id, point in POINTS.items() if point.world_size == size
    ]


def rows_below(wildcards):
    smaller = [size for size in SIZES if size < int(wildcards.size)]
    return [ancient(path) for size in smaller for path in rows_of(size)]


def rows(wildcards):
    return [path for size in SIZES for path in rows_of(size)] if MEASURED else []


def published():
    # rows that `scaling import` took in
    path = Path(RESULTS, "published.parquet")
    return [str(path)] if path.exists() else []


def predictions():
    return [f"{RESULTS}/predictions.parquet"] if PREDICTED else []


def calibration():
    return [f"{RESULTS}/calibration.json"] if MEASURED else []


def world_size(wildcards):
    return POINTS[wildcards.point].layout.world_size


def nodes(wildcards):
    point = POINTS[wildcards.point]
    return max(1, point.layout.world_size // point.gpus_per_node)


def ranks_per_node(wildcards):
    point = POINTS[wildcards.point]
    return min(point.layout.world_size, point.gpus_per_node)


def gpus_per_node(wildcards):
    return 0 if POINTS[wildcards.point].gpu == "cpu" else ranks_per_node(wildcards)


def gres(wildcards):
    return f"{SITE.gres}:{ranks_per_node(wildcards)}"


# some sites want GPUs by a name of their own
DEVICES = {"gres": gres} if SITE.gres else {"gpus_per_node": gpus_per_node}


if PROBED:
    ON_NODE = 0 if PROBE.gpu == "cpu" else PROBE.ranks_per_node
    PROBE_DEVICES = (
        {"gres": f"{SITE.gres}:{ON_NODE}"} if SITE.gres else {"gpus_per_node": ON_NODE}
    )


def runtime_minutes(wildcards):
    # start-up (imports on a shared file system) and clean-up come on top of the limit
    return int(POINTS[wildcards.point].time_limit_s // 60) + 5
