"""What results/<study>/study.json says of a study, and which study a folder belongs to."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scaling.errors import InputError
from scaling.study.mistakes import sentence
from scaling.study.paths import StudyPaths
from scaling.study.schema import Mode, Name, Reporting

if TYPE_CHECKING:
    from scaling.study.study import Study


class About(BaseModel):
    """study.json; what is missing was written before it was known, or by an import."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    title: str | None = None
    file: str | None = None  # the study's YAML, from the checkout where it lies in it
    mode: Mode = "measure"
    replicates: Name | None = None
    knee_share: Annotated[float, Field(strict=True, gt=0, le=1)] = Reporting().knee_share


def about(study: "Study") -> str:
    """The text of study.json: what its tables and its report are to know of it."""
    facts = About(
        title=study.title,
        file=_from_here(study.path),
        mode=study.mode,
        replicates=study.replicates,
        knee_share=study.report.knee_share,
    )
    return facts.model_dump_json(indent=1) + "\n"


def read_about(folder: Path) -> About:
    """What study.json says; the defaults where there is none.

    Raises:
        InputError: it is none that `scaling plan` wrote.
    """
    path = StudyPaths(folder).study
    try:
        return About.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return About()
    except ValidationError as error:
        reason = sentence(error, About)
        raise InputError(f"{path}: is not what `scaling plan` writes: {reason}") from None


def folder_of(study: "Study", results: Path) -> Path:
    """The study's folder. Two study files of one name would take each other's points for theirs.

    A file that has been moved is the same study; so is any where the folder does not say.

    Raises:
        InputError: the folder belongs to another study file, which is still there.
    """
    folder, path = results / study.name, study.path
    try:
        owner = read_about(folder).file
    except InputError:  # a broken one is written anew
        return folder
    if owner is not None and owner != _from_here(path) and Path(owner).is_file():
        raise InputError(
            f"{folder}: holds the study {owner}, not {path}: give one of the files another name, "
            f"or move {folder} away"
        )
    return folder


def _from_here(path: Path) -> str:
    """The path from the checkout where it lies in it, so that both can be moved together."""
    whole, here = path.resolve(), Path.cwd().resolve()
    return os.path.relpath(whole, here) if whole.is_relative_to(here) else str(whole)
