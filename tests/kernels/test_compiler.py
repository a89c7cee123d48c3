"""How numba is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COLORAMA = """
__version__ = "0.4.6"
reinit = deinit = print

class Fore:
    def __getattr__(self, name):
        return ""

Fore = Style = Fore()

def init():
    raise SystemExit("started, so it would write to standard output in the end")
"""
SCRIPT = """
import sys
import numpy as np
changes = []
sys.addaudithook(lambda event, args: changes.append(args) if event == "os.putenv" else None)
from commrt.kernels.compiler import NumbaError, compiled, wake
wake()
try:
    compiled(lambda x: x.nothing)(np.ones(1))
except NumbaError as exc:
    import colorama
    print("nothing" in str(exc), changes)
"""


def test_compiling_leaves_colorama_and_the_environment_alone(tmp_path: Path) -> None:
    """MPI starts in another thread meanwhile, and reads the environment."""
    (tmp_path / "colorama.py").write_text(COLORAMA)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True []\n", "")
