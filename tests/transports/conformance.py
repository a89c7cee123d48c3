"""What every transport must keep, as checks over a party: some or all ranks of a job.

Each check draws what all ranks hold from one seed, so that ranks in different processes agree.
A party of one process drives all its ranks in turn, in any order.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from commrt.kernels.numpy_ import dtype_of
from commrt.kernels.reduction import Reduction
from commrt.testing.wire import MemorySwitch
from commrt.transports.base import Channel, Members, Transport, Work
from commrt.types import ReduceOp

Array = npt.NDArray[Any]

DTYPES = ("bool", "int8", "uint16", "int32", "int64", "float32", "float64", "bfloat16")
LENGTHS = (0, 1, 2, 3, 7, 16, 31, 64, 257, 1000)
OPS = ((ReduceOp.SUM, np.add), (ReduceOp.MIN, np.minimum), (ReduceOp.MAX, np.maximum))
PATIENCE = 2_000_000
"""Looks at works in flight until a check gives up."""


class Party(Protocol):
    """The ranks of a job that this process runs."""

    size: int
    transports: Mapping[int, Transport]
    numbers: Numbers

    def share(self, values: dict[int, bytes]) -> dict[int, bytes]:
        """Give every process what each rank holds. A barrier."""

    def clean(self) -> bool:
        """Is no message left on the wire?"""


class Numbers:
    """Numbers of buckets: the same on all ranks, rising."""

    def __init__(self, start: int = 0) -> None:
        self.next = start

    def channel(self, stage: int = 0) -> Channel:
        self.next += 1
        return Channel(1, self.next - 1, stage)


class OneProcess:
    """A party whose ranks all run here."""

    def __init__(
        self, transports: Mapping[int, Transport], switch: MemorySwitch | None = None,
        start: int = 0,
    ) -> None:  # fmt: skip
        self.size = len(transports)
        self.numbers = Numbers(start)
        self.transports = transports
        self._switch = switch

    def share(self, values: dict[int, bytes]) -> dict[int, bytes]:
        return values

    def clean(self) -> bool:
        return self._switch is None or not self._switch.left()


class OneRank:
    """A party of one rank, whose process is one of a job of MPI's."""

    def __init__(self, comm: Any, transport: Transport) -> None:
        self._comm = comm
        self.size = comm.Get_size()
        self.numbers = Numbers()
        self.transports = {comm.Get_rank(): transport}

    def share(self, values: dict[int, bytes]) -> dict[int, bytes]:
        return {r: v for found in self._comm.allgather(values) for r, v in found.items()}

    def clean(self) -> bool:
        return True


class Operation:
    """One collective on the local ranks: their arrays, works, and what each must end with."""

    def __init__(
        self,
        members: Sequence[int],
        sources: dict[int, Array],
        outs: dict[int, Array],
        expected: dict[int, Array],
        start: Callable[[int, Members], Work],
    ) -> None:
        self.members = tuple(members)
        self.sources = sources
        self.outs = outs
        self.expected = expected
        self._start = start
        self.works: dict[int, Work] = {}
        self.found: dict[int, bytes] = {}

    def begin(self, rank: int) -> None:
        self.works[rank] = self._start(rank, Members(self.members, self.members.index(rank)))

    def progress(self, rank: int) -> bool:
        """Move one rank on; the moment it is done, keep its result and wipe its memory."""
        if not self.works[rank].progress():
            return False
        self.found[rank] = self.outs[rank].tobytes()
        self.sources[rank][:] = np.zeros((), self.sources[rank].dtype)
        self.outs[rank][:] = np.zeros((), self.outs[rank].dtype)
        return True

    def check(self, party: Party) -> None:
        """Compare with numpy, and the bits of ranks that must have the same."""
        for rank, found in self.found.items():
            expected = self.expected[rank]
            result = np.frombuffer(found, expected.dtype)
            if expected.dtype.kind in "fV":
                wide = result.astype(np.float64), expected.astype(np.float64)
                np.testing.assert_allclose(*wide, rtol=1e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(result, expected)
        shared = party.share(self.found)
        alike = {(self.expected_key(r), shared[r]) for r in shared}
        assert len(alike) == len({key for key, _ in alike}), "ranks hold different bits"

    def expected_key(self, rank: int) -> object:
        """What ranks of one key must hold in common."""
        return self.expected[rank].tobytes() if rank in self.expected else None


def local(party: Party, members: Sequence[int]) -> list[int]:
    return [r for r in members if r in party.transports]


def values(rng: np.random.Generator, n: int, dtype: np.dtype[Any]) -> Array:
    """Small whole numbers: their sums are exact in every dtype, in any order."""
    high = 2 if dtype == np.bool_ else 7
    return rng.integers(0, high, n).astype(dtype)


def allreduce(
    party: Party,
    numbers: Numbers,
    rng: random.Random,
    in_place: bool | None = None,
    members: Sequence[int] | None = None,
) -> Operation:
    draw = np.random.default_rng(rng.randrange(1 << 32))
    members = members or some_members(party, rng)
    dtype, n = dtype_of(rng.choice(DTYPES)), rng.choice(LENGTHS)
    in_place = rng.random() < 0.5 if in_place is None else in_place
    inputs = [values(draw, n, dtype) for _ in members]
    op, fold = rng.choice(OPS)
    total = folded(fold, inputs)
    mine = dict(zip(members, inputs, strict=True))
    sources = {r: mine[r].copy() for r in local(party, members)}
    outs = sources if in_place else {r: values(draw, n, dtype) for r in sources}
    luck = order_of(party, rng.random())
    for arrays in (sources, outs):
        for r in arrays:
            arrays[r] = somewhere(party.transports[r], arrays[r], luck)
    channel = numbers.channel()

    def start(rank: int, place: Members) -> Work:
        transport = party.transports[rank]
        return transport.allreduce(place, channel, sources[rank], outs[rank], Reduction(op))

    return Operation(members, sources, outs, dict.fromkeys(members, total), start)


def somewhere(transport: Transport, array: Array, rng: random.Random) -> Array:
    """Perhaps put an array where its transport likes it."""
    if rng.random() < 0.4:
        return array
    moved = transport.allocate(array.nbytes).view(array.dtype)
    moved[:] = array
    return moved


def reduce_scatter(
    party: Party, numbers: Numbers, rng: random.Random, members: Sequence[int] | None = None
) -> Operation:
    draw = np.random.default_rng(rng.randrange(1 << 32))
    members = members or some_members(party, rng)
    dtype = dtype_of(rng.choice(DTYPES))
    counts = [rng.choice((0, 1, 2, 9, 40, 300)) for _ in members]
    inputs = [values(draw, sum(counts), dtype) for _ in members]
    op, fold = rng.choice(OPS)
    parts = np.split(folded(fold, inputs), np.cumsum(counts)[:-1])
    sources = {r: inputs[members.index(r)].copy() for r in local(party, members)}
    outs = {r: values(draw, counts[members.index(r)], dtype) for r in sources}
    channel = numbers.channel()

    def start(rank: int, place: Members) -> Work:
        transport = party.transports[rank]
        return transport.reduce_scatter(
            place, channel, sources[rank], outs[rank], counts, Reduction(op)
        )

    return Operation(members, sources, outs, dict(zip(members, parts, strict=True)), start)


def folded(fold: Callable[..., Array], inputs: Sequence[Array]) -> Array:
    total = inputs[0].copy()
    for part in inputs[1:]:
        total = fold(total, part)
    return total


def allgather(party: Party, numbers: Numbers, rng: random.Random) -> Operation:
    draw = np.random.default_rng(rng.randrange(1 << 32))
    members = some_members(party, rng)
    dtype = dtype_of(rng.choice(DTYPES))
    counts = [rng.choice((0, 1, 2, 9, 40)) for _ in members]
    inputs = [values(draw, n, dtype) for n in counts]
    whole = np.concatenate(inputs)
    sources = {r: inputs[members.index(r)].copy() for r in local(party, members)}
    outs = {r: values(draw, len(whole), dtype) for r in sources}
    channel = numbers.channel()

    def start(rank: int, place: Members) -> Work:
        return party.transports[rank].allgather(place, channel, sources[rank], outs[rank], counts)

    return Operation(members, sources, outs, dict.fromkeys(members, whole), start)


def alltoallv(party: Party, numbers: Numbers, rng: random.Random) -> Operation:
    draw = np.random.default_rng(rng.randrange(1 << 32))
    members = some_members(party, rng)
    dtype = dtype_of(rng.choice(DTYPES))
    counts = [[rng.choice((0, 0, 1, 3, 20)) for _ in members] for _ in members]
    parts = [[values(draw, n, dtype) for n in row] for row in counts]
    expected = {r: np.concatenate([row[place] for row in parts]) for place, r in enumerate(members)}
    sources = {r: np.concatenate(parts[members.index(r)]) for r in local(party, members)}
    outs = {r: values(draw, expected[r].size, dtype) for r in sources}
    channel = numbers.channel()

    def start(rank: int, place: Members) -> Work:
        received = [row[place.index] for row in counts]
        return party.transports[rank].alltoallv(
            place, channel, sources[rank], outs[rank], counts[place.index], received
        )

    return Operation(members, sources, outs, expected, start)


def broadcast(party: Party, numbers: Numbers, rng: random.Random) -> Operation:
    draw = np.random.default_rng(rng.randrange(1 << 32))
    members = some_members(party, rng)
    dtype, n = dtype_of(rng.choice(DTYPES)), rng.choice(LENGTHS)
    root = rng.randrange(len(members))
    inputs = [values(draw, n, dtype) for _ in members]
    sources = {r: inputs[members.index(r)].copy() for r in local(party, members)}
    outs = sources if rng.random() < 0.5 else {r: values(draw, n, dtype) for r in sources}
    channel = numbers.channel()

    def start(rank: int, place: Members) -> Work:
        return party.transports[rank].broadcast(place, channel, sources[rank], outs[rank], root)

    return Operation(members, sources, outs, dict.fromkeys(members, inputs[root]), start)


KINDS = (allreduce, reduce_scatter, allgather, alltoallv, broadcast)


def some_members(party: Party, rng: random.Random) -> list[int]:
    """Draw a process set, often all ranks."""
    everyone = list(range(party.size))
    if rng.random() < 0.5:
        return everyone
    return sorted(rng.sample(everyone, rng.randint(1, party.size)))


def drive(party: Party, operations: Sequence[Operation], order: random.Random) -> None:
    """Begin and move on local ranks in random order until all are done."""
    for operation in operations:
        for rank in local(party, operation.members):
            operation.begin(rank)
    left = [(o, r) for o in operations for r in o.works]
    for _ in range(PATIENCE):
        if not left:
            return
        i = order.randrange(len(left))
        if left[i][0].progress(left[i][1]):
            del left[i]
    missing = {rank: operation.works[rank].waiting_for() for operation, rank in left}
    raise AssertionError(f"not done: {missing}")


def check_collectives_give_what_numpy_gives(party: Party, seed: int) -> None:
    rng, numbers = random.Random(seed), party.numbers
    for kind in KINDS:
        operation = kind(party, numbers, rng)
        drive(party, [operation], order_of(party, seed))
        operation.check(party)
    assert party.clean()


def check_several_in_flight_keep_apart(party: Party, seed: int) -> None:
    rng, numbers = random.Random(seed), party.numbers
    operations = [rng.choice(KINDS)(party, numbers, rng) for _ in range(rng.randint(2, 5))]
    drive(party, operations, order_of(party, seed))
    for operation in operations:
        operation.check(party)
    assert party.clean()


def check_floats_have_the_same_bits_on_all_ranks(party: Party, seed: int) -> None:
    rng, numbers = random.Random(seed), party.numbers
    members, n = some_members(party, rng), rng.choice(LENGTHS)
    draw = np.random.default_rng(seed)
    inputs = {r: draw.normal(size=n).astype(np.float32) for r in members}
    total = sum((a.astype(np.float64) for a in inputs.values()), np.zeros(n)).astype(np.float32)
    sources = {r: inputs[r].copy() for r in local(party, members)}
    channel = numbers.channel()
    operation = Operation(
        members,
        sources,
        sources,
        dict.fromkeys(members, total),
        lambda rank, place: party.transports[rank].allreduce(
            place, channel, sources[rank], sources[rank], Reduction(ReduceOp.SUM)
        ),
    )
    drive(party, [operation], order_of(party, seed))
    operation.check(party)


def check_finish_is_applied_once_to_each_element(party: Party, seed: int) -> None:
    rng, numbers = random.Random(seed), party.numbers
    n, members, channel = rng.choice(LENGTHS), range(party.size), numbers.channel()
    sources = {r: np.full(n, r + 1, np.int64) for r in local(party, members)}

    total = sum(range(1, party.size + 1))
    operation = Operation(
        members,
        sources,
        sources,
        dict.fromkeys(members, np.full(n, total * 10)),
        lambda rank, place: party.transports[rank].allreduce(
            place, channel, sources[rank], sources[rank], Reduction(ReduceOp.SUM, scale=10.0)
        ),
    )
    drive(party, [operation], order_of(party, seed))
    operation.check(party)


def check_no_byte_is_written_before_every_member_has_begun(party: Party, seed: int) -> None:
    """One member never enters; whatever the others do, everyone's arrays stay as they are.

    Then all cancel, the late one without ever having begun, and the channel is as new.
    """
    rng, numbers = random.Random(seed), party.numbers
    if party.size == 1:
        return
    kind = rng.choice((allreduce, reduce_scatter))
    operation = kind(party, numbers, rng, members=range(party.size))
    late = rng.randrange(party.size)
    held = [
        {r: a.tobytes() for r, a in arrays.items()}
        for arrays in (operation.sources, operation.outs)
    ]
    order = order_of(party, seed)
    entering = [r for r in operation.sources if r != late]
    for rank in operation.sources:
        operation.begin(rank)
    # A rank that gets no rows is done once it has sent its own.
    may_end = kind is reduce_scatter or not next(iter(operation.expected.values())).size
    for _ in range(order.randint(0, 400) if entering else 0):
        assert not operation.works[order.choice(entering)].progress() or may_end
    for arrays, before in zip((operation.sources, operation.outs), held, strict=True):
        assert {r: a.tobytes() for r, a in arrays.items()} == before
    party.share({})
    cancel(party, [operation], seed)
    for arrays, before in zip((operation.sources, operation.outs), held, strict=True):
        assert {r: a.tobytes() for r, a in arrays.items()} == before


def check_cancelled_half_way_leaves_a_clean_channel(party: Party, seed: int) -> None:
    """Members cancel wherever they are; operations with the same tags are right afterwards."""
    rng, numbers = random.Random(seed), party.numbers
    operations = [rng.choice(KINDS)(party, numbers, rng) for _ in range(2)]
    order = order_of(party, seed)
    for operation in operations:
        for rank in operation.sources:
            operation.begin(rank)
    running = [(o, r) for o in operations for r in o.works]
    for _ in range(order.choice((0, 1, 10, 100, 1000))):
        if running:
            i = order.randrange(len(running))
            if running[i][0].works[running[i][1]].progress():
                break  # never cancelled by an engine, but no harm either if all do it
    party.share({})
    cancel(party, operations, seed)


def check_steps_grow_while_data_moves(party: Party, seed: int) -> None:
    rng, numbers = random.Random(seed), party.numbers
    operation = allreduce(party, numbers, rng, members=range(party.size))
    before: dict[int, int] = {}
    for rank in operation.sources:
        operation.begin(rank)
        before[rank] = operation.works[rank].steps()
    left = list(operation.works)
    for _ in range(PATIENCE):
        for rank in list(left):
            if operation.progress(rank):
                left.remove(rank)
            assert operation.works[rank].steps() >= before[rank]
            before[rank] = operation.works[rank].steps()
        if not left:
            break
    assert not left
    if party.size > 1 and next(iter(operation.expected.values())).size:
        assert all(steps > 0 for steps in before.values())


def cancel(party: Party, operations: Sequence[Operation], seed: int) -> None:
    """Cancel on all ranks. A rank whose end is clean goes on at once, with the same tags."""
    rng, numbers, order = random.Random(seed), party.numbers, order_of(party, seed)
    following = [rng.choice(KINDS)(party, numbers, rng) for _ in range(len(operations))]
    draining = {r: [o.works[r] for o in operations if r in o.works] for r in party.transports}
    ahead = {r: [o for o in following if r in o.sources] for r in party.transports}
    for rank, works in draining.items():
        for work in works:
            work.cancel()
            work.cancel()
        for operation in ahead[rank]:
            operation.begin(rank)  # nothing is sent before the first look
    running = list(draining)
    for _ in range(PATIENCE):
        if not running:
            break
        rank = order.choice(running)
        draining[rank] = [work for work in draining[rank] if not work.progress()]
        if not draining[rank]:
            ahead[rank] = [o for o in ahead[rank] if not o.progress(rank)]
            if not ahead[rank]:
                running.remove(rank)
    assert not running, "a cancelled operation, or the one after it, does not end"
    for operation in following:
        operation.check(party)
    assert party.clean()


def order_of(party: Party, seed: float) -> random.Random:
    """The order of this process's looks, which is its own affair."""
    return random.Random(f"{seed} {sorted(party.transports)}")


CHECKS = (
    check_collectives_give_what_numpy_gives,
    check_several_in_flight_keep_apart,
    check_floats_have_the_same_bits_on_all_ranks,
    check_finish_is_applied_once_to_each_element,
    check_no_byte_is_written_before_every_member_has_begun,
    check_cancelled_half_way_leaves_a_clean_channel,
    check_steps_grow_while_data_moves,
)


def run_checks(party: Party, label: object, seeds: int) -> None:
    """Run all checks, each with other seeds, which are the same in every process."""
    for check in CHECKS:
        for seed in range(seeds):
            check(party, zlib.crc32(f"{check.__name__} {label} {seed}".encode()))
