"""How numba is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COLORAMA = """
__version__ = "0.4.6"
Fore = Style = None
reinit = deinit = print

def init():
    raise SystemExit("started, so it would write to standard output in the end")
"""
SCRIPT = """
import os
from commrt.kernels.compiler import wake
wake()
print(os.environ.get("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"))
"""


def test_compiling_leaves_colorama_alone_and_the_environment_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "colorama.py").write_text(COLORAMA)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")
