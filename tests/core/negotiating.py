"""What tests of negotiation have in common."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

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
