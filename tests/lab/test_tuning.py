"""What init() measures of the links between hosts."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

import pytest

from commrt.testing.lab.hosts import Lab

pytestmark = pytest.mark.lab


def moved_by(lab: Lab, each: int, env: Mapping[str, str]) -> str:
    command = [sys.executable, "-m", "commrt", "doctor", "--links"]
    done = lab.run(0, lab.job(each, command, env), timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = re.findall("moved by (.*)", done.stdout)
    return row.strip()


def test_a_choice_is_measured_once_and_kept_for_the_same_hosts() -> None:
    with Lab(3) as lab:
        first = moved_by(lab, 1, {})
        assert re.fullmatch(r"(TCP|MPI), recursive .* KiB \(measured now.*\)", first), first
        assert moved_by(lab, 1, {}) == first.replace("measured now", "measured by an earlier job")
        assert moved_by(lab, 1, {"COMMRT_TUNE": "0"}).endswith("(not measured: COMMRT_TUNE=0)")
        assert "(measured now" in moved_by(lab, 1, {"COMMRT_TRANSPORT": "mpi"})
        both = moved_by(lab, 2, {})
        inside = "shared memory inside 3 hosts; between them "
        assert re.fullmatch(inside + r"(TCP|MPI), .*\(measured now.*\)", both), both
