# Paths and look-ups, nothing else. What is imported here is loaded on every parse: standard library.
import shlex
import sys
from pathlib import Path

from scaling.errors import InputError
from scaling.study import paths, plan_file

chosen_by_option = {
    key: str(config[key]) for key in ("mode", "cluster") if key in config
}

try:
    PLAN = plan_file.current_plan(
        str(config.get("study", "quickstart")), **chosen_by_option
    )
except InputError as error:
    print(error, file=sys.stderr)
    sys.exit(2)

# what a verb needs to read the same study
CHOSEN = [
    word for key, value in chosen_by_option.items() for word in (f"--{key}", value)
]
NAME = Path(PLAN.study).stem
LEFT = paths.StudyPaths(paths.RESULTS / NAME)
LOGS = paths.LogPaths(paths.LOGS / NAME)
RESULTS = str(LEFT.folder)


def quoted(*words):
    # for a shell line that Snakemake formats; a line may use no name of ours but these, so that
    # the workflow works as a module of another
    text = shlex.join(map(str, words))
    return text.replace("{", "{{").replace("}", "}}")


# inside a container it is the container's own, which only --software-deployment-method asks for
CONTAINED = "apptainer" in map(str, workflow.deployment_settings.deployment_method)
SCALING = "scaling" if CONTAINED else quoted(sys.executable, "-m", "scaling")
CHOOSE = f"{SCALING} choose {quoted(PLAN.study, *CHOSEN)}"
REPORTS = paths.local_or_shipped("reports")
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
SIZES = sorted({asked.world_size for asked in PLAN.points.values()})


def row(point_id):
    return str(LEFT.row(point_id))


# a study that was measured without probes is left alone
PROBED = PLAN.probe and (
    LEFT.probes.exists()
    or not all(Path(row(point_id)).exists() for point_id in PLAN.points)
)


def probes():
    return [str(LEFT.probes)] if PROBED else []


def probes_before(wildcards):
    # ancient, and only before the point has run: new probes repeat no measurement
    return [
        ancient(path) for path in probes() if not Path(row(wildcards.point)).exists()
    ]


AGAIN = range(1, PLAN.again + 1)
REPEATS = range(1, PLAN.contended + 1)


def chosen():
    guided = [str(LEFT.choice(size)) for size in SIZES] if PLAN.guide else []
    guided += [str(LEFT.choice_again(size, turn)) for size in SIZES for turn in AGAIN]
    guided += [str(LEFT.choice_elsewhere(size)) for size in SIZES if PLAN.elsewhere]
    return guided + [
        str(LEFT.choice_of_repeat(size, repeat)) for size in SIZES for repeat in REPEATS
    ]


def rows_in(choice):
    # heavy, and only where something is chosen
    from scaling.run.choices import chosen_ids

    return [row(point_id) for point_id in chosen_ids(Path(choice))]


def first_rows_of(size, again=AGAIN):
    # a size is chosen for again once the rows of the choices before are there
    if PLAN.guide:
        paths = rows_in(checkpoints.choose.get(size=size).output[0])
        for turn in again:
            paths += rows_in(
                checkpoints.choose_again.get(size=size, turn=turn).output[0]
            )
        return paths
    return [
        row(point_id)
        for point_id, asked in PLAN.points.items()
        if asked.world_size == size and not (PLAN.contended and asked.repeat)
    ]


def rows_of(size, repeats=REPEATS):
    # a round of repeats is chosen once the rows of the rounds before it are there
    paths = first_rows_of(size)
    for repeat in repeats:
        paths += rows_in(checkpoints.contend.get(size=size, repeat=repeat).output[0])
    if PLAN.elsewhere:
        paths += rows_in(checkpoints.elsewhere.get(size=size).output[0])
    return paths


def rows_before_elsewhere(wildcards):
    # and the choices of smaller sizes: no point is added twice
    smaller = [size for size in SIZES if size < int(wildcards.size)]
    wanted = [
        path for size in (*smaller, int(wildcards.size)) for path in first_rows_of(size)
    ]
    wanted += [str(LEFT.choice_elsewhere(size)) for size in smaller]
    return [ancient(path) for path in wanted]


def rows_before_turn(wildcards):
    earlier = range(1, int(wildcards.turn))
    return [ancient(path) for path in first_rows_of(int(wildcards.size), earlier)]


def rows_before_repeat(wildcards):
    earlier = range(1, int(wildcards.repeat))
    return [ancient(path) for path in rows_of(int(wildcards.size), earlier)]


def rows_below(wildcards):
    smaller = [size for size in SIZES if size < int(wildcards.size)]
    return [ancient(path) for size in smaller for path in rows_of(size)]


def rows(wildcards):
    return [path for size in SIZES for path in rows_of(size)] if PLAN.measured else []


def published():
    # rows that `scaling import` took in
    return [str(LEFT.published)] if LEFT.published.exists() else []


def predictions():
    return [str(LEFT.predictions)] if PLAN.predicted else []


def calibration():
    return [str(LEFT.calibration)] if PLAN.measured else []


# the earlier in the plan's order, the sooner
PLACES = {point_id: place for place, point_id in enumerate(PLAN.points)}


def precedence(wildcards):
    return len(PLACES) - PLACES.get(wildcards.point, len(PLACES))


def asked_for(wildcards):
    if wildcards.point in PLAN.points:
        return PLAN.points[wildcards.point]
    # added since, to run elsewhere: heavy
    from scaling.run.choose import allocation_of_added

    return allocation_of_added(LEFT, wildcards.point)


def avoided(wildcards):
    # nodes that are slow, and for a repeat those its layout has run on
    asked = asked_for(wildcards)
    named = PLAN.exclude and (LEFT.probes.exists() or LEFT.excluded.exists())
    if not named and not (PLAN.contended and asked.repeat):
        return ""
    # heavy, and only where there is something to avoid
    from scaling.run.sweep import hosts_to_avoid

    return ",".join(
        hosts_to_avoid(LEFT, wildcards.point, asked, PLAN.nodes, slow_ones=PLAN.exclude)
    )


def nodes(wildcards):
    return asked_for(wildcards).nodes


def ranks_per_node(wildcards):
    return asked_for(wildcards).ranks_per_node


def runtime_minutes(wildcards):
    return asked_for(wildcards).minutes


def devices_of(ranks):
    # some sites want GPUs by a name of their own
    if PLAN.gres:
        return f"{PLAN.gres}:{ranks}"
    return ranks if PLAN.on_gpus else 0


def devices(wildcards):
    return devices_of(ranks_per_node(wildcards))


DEVICES = "gres" if PLAN.gres else "gpus_per_node"
