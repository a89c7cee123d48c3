"""`commrt bench --hosts`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab

COMMAND = [sys.executable, "-m", "commrt", "bench", "latency", "--iterations", "20"]


def bench(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], env={**os.environ, **env}, capture_output=True, text=True, timeout=100
    )


def test_a_benchmark_runs_on_test_hosts() -> None:
    done = bench("--hosts", "3", "--rate=100mbit", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first == "# 3 test hosts on this machine, 1 rank(s) on each, links of 100mbit"
    assert "3 ranks" in second


def test_what_can_not_be_made_is_said() -> None:
    done = bench("--hosts", "2", "--rate", "nonsense")
    assert (done.returncode, "nonsense" in done.stderr) == (2, True)
    done = bench("--hosts", "2", OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2")
    assert (done.returncode, "start it without Open MPI" in done.stderr) == (2, True)


def test_one_that_is_told_to_end_leaves_no_hosts() -> None:
    command = [*COMMAND, "--hosts", "2", "--rounds", "1000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    own = f"-{process.pid}-"
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline().startswith("# 2 test hosts")
        assert any(own in path.name for path in Path("/var/run/netns").iterdir())
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert not any(own in path.name for path in Path("/var/run/netns").iterdir())
