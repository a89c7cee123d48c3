"""Memory that others may still write to."""

from __future__ import annotations

import ctypes


def keep_for_ever(thing: object) -> None:
    """Never free it: what an MPI message was asked into is MPI's until the message comes."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
