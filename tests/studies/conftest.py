"""The published studies, predicted and asked for what their papers found."""

from functools import cache

import pyarrow.parquet as pq
import pytest

from scaling.analyse.replication import replicate
from scaling.analyse.warehouse import tabulate
from scaling.importing.reader import read_rows
from scaling.predict.cost.model import predict
from scaling.predict.cost.prediction_tables import prediction_table
from scaling.predict.read.points import points_of
from scaling.record.files import write_points, write_table
from scaling.study.load import load_study
from tests.conftest import PROJECT
from tests.plans import fitting_plan
from tests.shipped import CLUSTERS, MODELS


@pytest.fixture(scope="session")
def predicted_study(tmp_path_factory):
    """The folder of a shipped study, predicted and tabulated."""

    @cache
    def run(name):
        folder = tmp_path_factory.mktemp(name)
        study = load_study(name)
        write_points(folder, fitting_plan(study))
        columns = read_rows(folder / "points.parquet")
        points = points_of(columns, models=MODELS, clusters=CLUSTERS)
        write_table(folder / "predictions.parquet", prediction_table(points, predict(points)))
        tabulate(folder, PROJECT / "reports" / "sql")
        return folder

    return run


@pytest.fixture(scope="session")
def predicted(predicted_study):
    """A study's predicted answers to each finding: records by finding and subject."""

    @cache
    def run(name):
        folder = predicted_study(name)
        replicate(folder, PROJECT / "reports" / "replication" / load_study(name).replicates)
        records = pq.read_table(folder / "tables" / "replication.parquet").to_pylist()
        return {(record["finding"], record["subject"]): record for record in records}

    return run
