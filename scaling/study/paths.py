"""All paths under results/<study>/ and logs/<study>/, and where what ships with us lies.

No other module spells them. Snakemake imports this on every parse, so it needs the standard library
only. Nothing parses a path: code that needs a point's id has the point.
"""

import errno
import os
import tempfile
from pathlib import Path

from scaling.errors import CannotWrite

CONFIG, RESULTS, LOGS = Path("config"), Path("results"), Path("logs")
_RETRIED, _HOSTS = "retried", "hosts.json"

_PACKAGE = Path(__file__).parents[1]
# Holds Snakefile, workflow/rules/, reports/ and config/: inside an installed package, or the root
# of a checkout.
SHIPPED = _PACKAGE / "shipped" if (_PACKAGE / "shipped").is_dir() else _PACKAGE.parent


class StudyPaths:
    """The files in results/<study>/."""

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
        # measurements
        self.probes = folder / "probes.parquet"
        self.hosts = folder / _HOSTS
        self.rows = folder / "rows"
        self.retried = self.rows / _RETRIED
        self.excluded = folder / "excluded.json"
        self.published = folder / "published.parquet"
        # results
        self.calibration = folder / "calibration.json"
        self.predictions = folder / "predictions.parquet"
        self.tables = folder / "tables"
        self.charts = folder / "charts"
        self.report = folder / "report.html"

    def point(self, point_id: str) -> Path:
        """The input of a point's job."""
        return self.points / f"{point_id}.json"

    def row(self, point_id: str) -> Path:
        """The result of a point's job."""
        return self.rows / f"{point_id}.parquet"

    def round(self, number: int | str) -> Path:
        """The points that a round measures, from 1."""
        return self.folder / f"round{number}.parquet"

    def rounds(self) -> list[Path]:
        """The files of all rounds so far, in order."""
        files: list[Path] = []
        while (path := self.round(len(files) + 1)).exists():
            files.append(path)
        return files

    def table(self, name: str) -> Path:
        """The output of an SQL file."""
        return self.tables / f"{name}.parquet"


class LogPaths:
    """The files in logs/<study>/."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.snakemake = folder / "snakemake.log"
        self.probe_ranks = folder / "ranks" / "probe"

    def rule(self, name: str) -> Path:
        """The log of a rule, or of one of its jobs: `measure/<point_id>`."""
        return self.folder / f"{name}.log"

    def ranks(self, point_id: str) -> Path:
        """The folder with the logs of a point's ranks."""
        return self.folder / "ranks" / point_id


def check_writable(path: Path) -> None:
    """Refuse at once what would be refused after minutes: a megabyte must fit where `path` goes.

    Raises:
        CannotWrite: it does not, or nothing can be written there.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        folder = next(one for one in path.absolute().parents if one.exists())
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1_000_000))
    except OSError as error:
        raise CannotWrite(f"{path}: cannot be written: {error.strerror}") from error


def hosts_beside(probes: Path) -> Path:
    """The facts about the hosts of these probes."""
    return probes.with_name(_HOSTS)


def running_marker(row: Path) -> Path:
    """The file next to a future row that exists while its point runs."""
    return row.with_suffix(".running")


def retried(row: Path, attempt: int) -> Path:
    """The place of the row of a failed attempt when its point runs again."""
    return row.parent / _RETRIED / f"{row.stem}.{attempt}.parquet"


def rank_logs(study: str, point_id: str, row: Path) -> Path:
    """logs/<study>/ranks/<point_id>/ next to results/; for a row elsewhere, <name>.logs/."""
    in_study = StudyPaths(RESULTS / study).row(point_id).parts
    if row.parts[-len(in_study) :] == in_study:
        return LogPaths(row.parents[len(in_study) - 1] / LOGS / study).ranks(point_id)
    return logs_beside(row)


def logs_beside(path: Path) -> Path:
    """The folder with the ranks' logs of a row that belongs to no study."""
    return path.with_suffix(".logs")
