"""A TCP port for the job. Standard library only: the shim imports it."""

from __future__ import annotations

import os
import socket

_PORTS = range(20000, 32000)


def claim_port() -> tuple[int, socket.socket]:
    """Choose a port; no other job on this host chooses it while the socket returned is open.

    The claim is an abstract unix socket, so the port itself stays free for the job. Below the
    range from which kernels take ports for outgoing connections. Raises OSError.
    """
    start = int.from_bytes(os.urandom(2), "big")
    for i in range(len(_PORTS)):
        port = _PORTS[(start + i) % len(_PORTS)]
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0commrun-port-{port}")
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:
            claim.close()
            continue
        return port, claim
    raise OSError("no free TCP port")
