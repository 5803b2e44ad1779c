"""Verbs about a folder or study."""

import pytest

from scaling.cli import folders
from scaling.errors import InputError


def test_a_scheduler_that_there_is_not_is_refused_before_anything_is_ended():
    with pytest.raises(InputError, match="--scheduler pbs: allowed: local, slurm"):
        folders.stop("quickstart", "pbs")
