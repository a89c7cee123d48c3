"""A rank on another host dies in the middle of a transfer."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import pytest

from commrt.testing.lab.hosts import Lab

pytestmark = pytest.mark.lab

SCRIPT = """
    import os, signal, sys, time
    import numpy as np
    import commrt
    commrt.init()
    victim = commrt.size() - 1
    commrt.allreduce(np.ones(10))
    handle = commrt.allreduce_async_(np.ones(16 << 20, np.float32), name="g")
    executor = commrt.api.session().runtime.parts.executor
    while not executor.steps() > 20:
        time.sleep(0.001)
    began = time.monotonic()
    if commrt.rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        handle.wait()
    except commrt.PeerLostError as exc:
        print("lost", exc.ranks, exc.hosts, time.monotonic() - began < 5, flush=True)
"""


@pytest.mark.parametrize(("hosts", "each"), [(3, 1), (2, 2)])
def test_survivors_on_all_hosts_name_the_dead(hosts: int, each: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    size = hosts * each
    with Lab(hosts, "200mbit") as lab:
        places = ",".join(f"{lab.address(i)}:{each}" for i in range(hosts))
        mpirun = f"--prtemca plm_ssh_agent {lab.agent} --mca pml ob1 --mca btl tcp,sm,self"
        words = [sys.executable, "-m", "commrun", "-H", places, "-x", "COMMRT_TUNE=0"]
        words += ["--mpi-args", mpirun]
        done = lab.run(0, [*words, sys.executable, str(script)], timeout=100)
    assert done.returncode == 128 + 9, done.stdout + done.stderr
    last = rf"lost \({size - 1},\) \('h{hosts - 1}',\) True"
    found = sorted(re.findall(rf"^\[(\d)@h\d\] {last}$", done.stdout, re.M))
    assert found == [str(rank) for rank in range(size - 1)], done.stdout + done.stderr
    assert f"rank {size - 1} on host h{hosts - 1} was killed by signal 9" in done.stderr
