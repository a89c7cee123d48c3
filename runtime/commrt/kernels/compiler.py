"""numba, which compiles the kernels; imported here alone.

Where colorama can be imported, numba starts it, for the colours of its messages, and colorama then
writes a reset of colours to standard output when the process ends: in each rank's output, into
whatever reads it. So numba is imported as if there were none. Its environment variable would do the
same, but changing the environment while MPI starts in another thread can crash that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_started = "colorama" in sys.modules
if not _started:
    sys.modules["colorama"] = None  # type: ignore[assignment]
try:
    import numba
    from numba.core import cgutils, types
    from numba.core.errors import NumbaError
    from numba.extending import intrinsic
finally:
    if not _started:
        sys.modules.pop("colorama")

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
