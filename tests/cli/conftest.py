"""Fixtures of the tests of the command line."""

import pytest

from scaling.cli.verbs import main


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """Run `scaling ...` in an empty folder; its exit code, its output and its errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["scaling", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return ended.value.code or 0, told.out, told.err

    return run
