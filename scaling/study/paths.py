"""Every path that a study leaves: results/<study>/ and logs/<study>/. No other file spells them.

Snakemake imports it on every parse, so it needs the standard library only. Nothing is read off a
path: who needs a point's id has the point.
"""

from pathlib import Path

RESULTS, LOGS = Path("results"), Path("logs")
_RETRIED = "retried"

_PACKAGE = Path(__file__).parents[1]
# Snakefile, workflow/rules/, reports/ and config/ as they ship: inside an installed package, beside
# it in a checkout.
SHIPPED = _PACKAGE / "shipped" if (_PACKAGE / "shipped").is_dir() else _PACKAGE.parent


def local_or_shipped(path: str | Path) -> Path:
    """A path of the current folder where it is there, else the same path of what ships."""
    return Path(path) if Path(path).exists() else SHIPPED / path


class StudyPaths:
    """What lies in one study's folder, results/<study>/."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # the plan
        self.points = folder / "points"
        self.points_table = folder / "points.parquet"
        self.refused = folder / "refused.parquet"
        self.study = folder / "study.json"
        self.probe_plan = folder / "probe.json"
        self.plan = folder / "plan.json"
        self.plan_lock = folder / ".plan.lock"
        # what ran
        self.chosen = folder / "chosen"
        self.probes = folder / "probes.parquet"
        self.hosts = hosts_beside(self.probes)
        self.rows = folder / "rows"
        self.retried = self.rows / _RETRIED
        self.excluded = folder / "excluded.json"
        self.published = folder / "published.parquet"
        # what follows from it
        self.calibration = folder / "calibration.json"
        self.predictions = folder / "predictions.parquet"
        self.tables = folder / "tables"
        self.charts = folder / "charts"
        self.report = folder / "report.html"
        self.multiqc = folder / "scaling_mqc.json"

    def point(self, point_id: str) -> Path:
        """What a point's job is asked."""
        return self.points / f"{point_id}.json"

    def row(self, point_id: str) -> Path:
        """What a point left."""
        return self.rows / f"{point_id}.parquet"

    def choice(self, world_size: int | str) -> Path:
        """Which points of a size a guided sweep measures."""
        return self.chosen / f"{world_size}.parquet"

    def choice_again(self, world_size: int | str, turn: int | str) -> Path:
        """What rows of a size make worth measuring too, for the so manieth time."""
        return self.chosen / f"{world_size}.again{turn}.parquet"

    def choice_of_repeat(self, world_size: int | str, repeat: int | str) -> Path:
        """Which layouts of a size are measured once more, for the so manieth time."""
        return self.chosen / f"{world_size}.repeat{repeat}.parquet"

    def choice_elsewhere(self, world_size: int | str) -> Path:
        """Which layouts up to a size run once more, since they ran on slow nodes only."""
        return self.chosen / f"{world_size}.elsewhere.parquet"

    def table(self, name: str) -> Path:
        """What an SQL file made."""
        return self.tables / f"{name}.parquet"


class LogPaths:
    """The logs of one study, logs/<study>/."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.snakemake = folder / "snakemake.log"
        self.probe_ranks = folder / "ranks" / "probe"

    def rule(self, name: str) -> Path:
        """The log of one rule, or of one job of it: `measure/<point_id>`."""
        return self.folder / f"{name}.log"

    def ranks(self, point_id: str) -> Path:
        """The folder of the logs of a point's ranks."""
        return self.folder / "ranks" / point_id


def hosts_beside(probes: Path) -> Path:
    """What the hosts are whose probes these are."""
    return probes.with_name("hosts.json")


def running_marker(row: Path) -> Path:
    """Lies beside the row to come while its point runs."""
    return row.with_suffix(".running")


def retried(row: Path, attempt: int) -> Path:
    """Where the row of a failed attempt is kept once the point shall run again."""
    return row.parent / _RETRIED / f"{row.stem}.{attempt}.parquet"


def unreadable(row: Path, number: int) -> Path:
    """Where a file that holds no row is kept; the sentence that says why, a .txt, beside it."""
    return row.parent / "unreadable" / f"{row.stem}.{number}.parquet"


def row_of_unreadable(kept: Path) -> Path:
    """The file that `unreadable` keeps, where it would lie again."""
    return kept.parent.parent / f"{kept.stem.rpartition('.')[0]}.parquet"


def rank_logs(study: str, point_id: str, row: Path) -> Path:
    """logs/<study>/ranks/<point_id>/ beside results/; for a row elsewhere, <name>.logs/."""
    usual = StudyPaths(RESULTS / study).row(point_id).parts
    if row.parts[-len(usual) :] == usual:
        return LogPaths(row.parents[len(usual) - 1] / LOGS / study).ranks(point_id)
    return logs_beside(row)


def logs_beside(path: Path) -> Path:
    """The folder of the logs of ranks whose rows go to a file of no study."""
    return path.with_suffix(".logs")
