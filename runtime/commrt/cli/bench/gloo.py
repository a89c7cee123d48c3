"""torch.distributed's gloo group over the same ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import commrt
from commrt import api
from commrt.cli.bench.options import UsageError
from commrt.control.interfaces import common_address, own_addresses


def join() -> Any:
    """Make the default process group, by the launcher's variables or else by our own means."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo")
    except ValueError:  # the launcher has not set MASTER_ADDR and the rest
        store = _store(dist)
        dist.init_process_group("gloo", store=store, rank=commrt.rank(), world_size=commrt.size())
    return dist


def leave() -> None:
    """End the process group; a collective operation."""
    import torch.distributed as dist

    commrt.barrier()
    dist.destroy_process_group()


@contextmanager
def group() -> Iterator[None]:
    """Join, and leave in the end; but not after an error, when other ranks may be elsewhere."""
    join()
    yield
    leave()


def _store(dist: Any) -> Any:
    """Let rank 0 listen on a free port of an address that every rank can reach."""
    hosts, size = api.session().runtime.topology.hosts, commrt.size()
    addresses = commrt.allgather_object(own_addresses())
    others = [a for a, host in zip(addresses, hosts, strict=True) if host != hosts[0]]
    address = common_address(addresses[0], others) if others else "127.0.0.1"
    if address is None:
        raise UsageError("rank 0's host has no network interface that all other hosts share")
    if commrt.rank() == 0:
        store = dist.TCPStore(address, 0, size, is_master=True, wait_for_workers=False)
        commrt.broadcast_object(store.port)
        return store
    return dist.TCPStore(address, commrt.broadcast_object(None), size, is_master=False)
