"""The plan of a study that a test has loaded."""

from scaling.run import planning
from scaling.study.grid import Plan, expand_grid
from scaling.study.study import Study


def fitting_plan(study: Study) -> Plan:
    """The points that `scaling plan` keeps, and its refusals."""
    planned = expand_grid(study)
    return planning.fit(study, planned) if study.mode == "measure" else planned
