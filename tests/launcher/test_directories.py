"""Private directories, and the guard that removes them."""

import os
import signal
import subprocess
import sys

import pytest

from commrun.directories import is_private, private_path, remove_tree
from commrun.guard import Guard
from harness import environment, wait_until


def test_a_private_path_is_new_and_short():
    for parent in ("/var/tmp", "", "/tmp/" + "x" * 200):
        path = private_path(parent)
        assert path != private_path(parent)
        assert is_private(path) and not os.path.exists(path)
        assert len(path) < 90


def test_removing_a_tree_follows_no_link(tmp_path):
    kept, removed = tmp_path / "kept", tmp_path / "removed"
    (removed / "a" / "b").mkdir(parents=True)
    (removed / "a" / "file").touch()
    kept.mkdir()
    (kept / "file").touch()
    (removed / "a" / "link").symlink_to(kept)
    (tmp_path / "link").symlink_to(kept)
    remove_tree(str(removed))
    assert sorted(os.listdir(tmp_path)) == ["kept", "link"]
    assert (kept / "file").exists()


@pytest.mark.parametrize("name", ["missing", "file", "link"])
def test_what_is_no_directory_is_left_alone(tmp_path, monkeypatch, name):
    monkeypatch.setattr("commrun.directories._PATIENCE", 0.0)
    (tmp_path / "file").touch()
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    remove_tree(str(tmp_path / name))
    assert sorted(os.listdir(tmp_path)) == ["file", "kept", "link"]


def test_what_belongs_to_another_user_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    remove_tree(str(tmp_path / "theirs"))
    assert os.listdir(tmp_path) == ["theirs"]


def test_a_guard_makes_private_directories(tmp_path):
    guard = Guard()
    path = guard.make_directory(str(tmp_path) if len(str(tmp_path)) < 60 else "")
    assert os.stat(path).st_mode & 0o777 == 0o700
    os.close(guard.fd)
    wait_until(lambda: not os.path.exists(path), "removed")


@pytest.mark.faults
@pytest.mark.parametrize("spare", [True, False])
def test_a_guard_acts_for_a_process_that_was_killed(tmp_path, spare):
    script = f"""
import os, signal, subprocess, sys
sys.path[:0] = {sys.path!r}
from commrun.guard import Guard
guard = Guard()
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
guard.kill(child.pid)
if {spare}:
    guard.spare()
path = guard.make_directory({str(tmp_path)!r})
open(path + "/file", "w").close()
print(child.pid, path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        child, path = process.stdout.readline().split()
    wait_until(lambda: not os.path.exists(path), "removed")
    assert spare == is_alive(int(child))
    if spare:
        os.kill(int(child), signal.SIGKILL)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
