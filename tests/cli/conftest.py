"""Fixtures of the tests of the command line."""

import json

import pytest

from scaling.cli.verbs import main


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """Run `scaling ...` in an empty folder; its exit code, its output and its errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["scaling", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return ended.value.code or 0, told.out, told.err

    return run


@pytest.fixture
def facts(say):
    """The answer of a verb with --json."""

    def run(*arguments):
        code, out, err = say(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return run


@pytest.fixture
def refusal(say):
    """The one sentence with which a verb refuses."""

    def run(*arguments):
        code, out, err = say(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err

    return run
