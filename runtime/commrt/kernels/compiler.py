"""numba, which compiles the kernels; imported here alone.

Where colorama is there, numba starts it at its first compilation, and colorama then writes a reset
of colours to standard output when the process ends: in each rank's output, into whatever reads it.
So numba is imported with its colours off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

_COLOURS_OFF = "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"

_before = os.environ.get(_COLOURS_OFF)
os.environ[_COLOURS_OFF] = "1"
try:
    import numba
    from numba.core import cgutils, types
    from numba.core.errors import NumbaError
    from numba.extending import intrinsic
finally:
    if _before is None:
        del os.environ[_COLOURS_OFF]
    else:
        os.environ[_COLOURS_OFF] = _before

__all__ = ["NumbaError", "cgutils", "compiled", "intrinsic", "types", "wake"]


def compiled(function: Callable[..., Any]) -> Any:
    """Compile without the interpreter lock; keep the result on disk if any place is writable."""
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return numba.njit(nogil=True)(function)


def wake() -> None:
    """Have numba load what it loads when it first compiles anything."""
    numba.njit(lambda: None)()
