"""The cluster of these tests: two of them run side by side."""

import pytest

pytestmark = pytest.mark.slurm


def test_the_database_keeps_its_temporary_tables_apart(lab):
    # a mariadbd that starts removes those of every other server in the same folder
    socket = lab.folder / "sql" / "sock"
    asked = lab.ask("mariadb", "--no-defaults", "-S", str(socket), "-Ne", "select @@tmpdir")
    assert asked.strip() == str(lab.folder / "sql" / "tmp")
