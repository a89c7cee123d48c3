"""`commrt bench --hosts`."""

from __future__ import annotations

import os
import subprocess
import sys

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
