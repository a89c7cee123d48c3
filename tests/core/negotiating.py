"""What tests of negotiation have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from commrt.errors import PeerLostError
from commrt.testing.network import Network
from commrt.types import Bucket, Kind, Request, Signature, TensorSpec

SEEDS = st.integers(0, 1 << 32)
CAPACITIES = st.sampled_from((1, 2, 3, 4096))
FLOATS = Signature(Kind.ALLREDUCE, (TensorSpec("float32", (2, 3)),))


def ask(name: str, signature: Signature = FLOATS, set_id: int = 0, **more: object) -> Request:
    return Request(set_id, name, True, signature, site="train.py:7", **more)  # type: ignore[arg-type]


def check_order(network: Network, joined: bool = False) -> None:
    """Ranks run the buckets they share, which are the same, in one order.

    `joined`: but for who had joined.
    """
    by_number: dict[int, Bucket] = {}
    for rank, state in enumerate(network.ranks):
        numbers = [bucket.number for bucket in state.begun]
        assert numbers == sorted(set(numbers))
        for bucket in state.begun:
            assert rank in network.settings.sets[bucket.set_id].ranks
            if joined:
                alike = tuple(replace(o, joined=False) for o in bucket.operations)
                bucket = replace(bucket, operations=alike)
            assert by_number.setdefault(bucket.number, bucket) == bucket


def check_lost(network: Network, lost: Sequence[int]) -> None:
    """Ranks killed by signal 9 have ended all others, with one error that names them."""
    if not lost:
        return
    errors = [s.end.error for r, s in enumerate(network.ranks) if s.end and r not in lost]
    assert len(errors) == network.settings.size - len(lost)
    assert len({str(error) for error in errors}) == 1
    for error in errors:
        assert isinstance(error, PeerLostError)
        assert error.ranks == tuple(lost)
        assert error.hosts == tuple(f"host{r}" for r in lost)
        assert all(f"rank {r} on host{r}: killed by signal 9" in str(error) for r in lost)
