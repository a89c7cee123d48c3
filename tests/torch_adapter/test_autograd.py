"""Gradients through collectives, against one process that computes all ranks' results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import commrt.torch as hvd
from commrt.types import ReduceOp

Holds = Callable[..., None]


@pytest.mark.usefixtures("world")
def test_what_needs_no_gradient_is_not_recorded() -> None:
    x = torch.ones(2, 3)
    wanted = torch.ones(2, 3, requires_grad=True)
    assert not hvd.allreduce(x).requires_grad
    with torch.no_grad():
        assert not hvd.allgather(wanted).requires_grad
    assert not hvd.synchronize(hvd.allreduce_async(wanted)).requires_grad
    mixed = hvd.grouped_allreduce([wanted, torch.ones(2, dtype=torch.int64)], op=hvd.Sum)
    assert [y.requires_grad for y in mixed] == [True, False]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product, hvd.Adasum])
def test_other_reductions_than_sums_have_no_gradient(op: ReduceOp) -> None:
    x = torch.ones(3, requires_grad=True)
    y = hvd.allreduce(x, op=op)
    with pytest.raises(hvd.ArgumentError, match=f"{op.name.title()} has no gradient"):
        y.sum().backward()


@pytest.mark.usefixtures("world")
def test_the_graph_is_kept_from_growing_by_detaching() -> None:
    loss = torch.ones((), requires_grad=True) * 2
    assert hvd.allreduce(loss.detach()).grad_fn is None


_JOINT = """
def value(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def check(ours, joint, shapes, factor=1.0, members=None):
    # ours(list of own inputs) -> list of results; joint(inputs of all) -> results of each rank.
    # The loss weighs every element of every result differently.
    members = list(members or range(size))
    if rank not in members:
        return
    index = members.index(rank)
    inputs = [[value(100 * r + i, *shape) for i, shape in enumerate(shapes(r))]
              for r in range(len(members))]
    for one in inputs:
        for x in one:
            x.requires_grad_()
    mine = [x.detach().clone().requires_grad_() for x in inputs[index]]
    results = ours(mine)
    expected = joint(inputs)
    for y, z in zip(results, expected[index], strict=True):
        assert torch.allclose(y, z.to(y.dtype), rtol=1e-12, atol=1e-12), (y, z)
    total = sum((z * value(7 * r + i, *z.shape)).sum()
                for r, one in enumerate(expected) for i, z in enumerate(one))
    total.backward()
    own = sum((y * value(7 * index + i, *y.shape)).sum() for i, y in enumerate(results))
    own.backward()
    for x, z in zip(mine, inputs[index], strict=True):
        grad = torch.zeros_like(z) if z.grad is None else z.grad
        assert torch.allclose(x.grad, factor * grad, rtol=1e-12, atol=1e-12), (x.grad, grad)


def summed(scale):
    def joint(inputs):
        sums = [scale * sum(xs) for xs in zip(*inputs)]
        return [[x.clone() for x in sums] for _ in inputs]
    return joint


def gathered(inputs):
    all_rows = [torch.cat([x.reshape(-1, *x.shape[1:]) for x in xs]) for xs in zip(*inputs)]
    return [[x.clone() for x in all_rows] for _ in inputs]


def scattered(scale):
    def joint(inputs):
        sums = [scale * sum(xs) for xs in zip(*inputs)]
        cut = [torch.tensor_split(x, len(inputs)) for x in sums]
        return [[parts[r] for parts in cut] for r in range(len(inputs))]
    return joint


def same(*shapes):
    return lambda r: shapes


@fact
def allreduce():
    n = size
    check(lambda xs: [hvd.allreduce(xs[0])], summed(1 / n), same((2, 3)))
    check(lambda xs: [hvd.allreduce(xs[0], op=hvd.Sum)], summed(1), same((2, 3)))
    check(lambda xs: [hvd.allreduce(xs[0], name="x", op=hvd.Sum, prescale_factor=0.5,
                                    postscale_factor=3.0)], summed(1.5), same(()))
    check(lambda xs: hvd.grouped_allreduce(xs), summed(1 / n), same((2, 3), (0,), (4,)))
    check(lambda xs: [hvd.allreduce(xs[0], process_set=PAIR)], summed(0.5), same((3,)),
          members=[0, 1])


@fact
def allgather():
    ragged = lambda r: ((r, 3), (2 - r % 2,))
    check(lambda xs: [hvd.allgather(xs[0])], gathered, same((2, 3)), 1 / size)
    check(lambda xs: hvd.grouped_allgather(xs, name="rows"), gathered, ragged, 1 / size)
    check(lambda xs: [hvd.allgather(xs[0], process_set=PAIR)], gathered, lambda r: ((1 + r,),), 0.5,
          members=[0, 1])
    x = torch.ones((), requires_grad=True)
    (hvd.allgather(x) * (rank + 1)).sum().backward()
    assert x.grad.shape == () and x.grad == (size + 1) / 2
    assert x.grad.untyped_storage().nbytes() == 4


@fact
def broadcast():
    root = size - 1
    joint = lambda inputs: [[inputs[root][0].clone()] for _ in inputs]
    check(lambda xs: [hvd.broadcast(xs[0], root)], joint, same((2, 3)), 1 / size)
    pair = lambda inputs: [[inputs[1][0].clone()] for _ in inputs]
    check(lambda xs: [hvd.broadcast(xs[0], 1, "b", PAIR)], pair, same((2,)), 0.5, members=[0, 1])


@fact
def alltoall():
    def equal(inputs):
        parts = [x[0].split(1) for x in inputs]
        return [[torch.cat([p[r] for p in parts])] for r in range(size)]

    splits = [[(r + c) % 3 for c in range(size)] for r in range(size)]

    def uneven(inputs):
        parts = [x[0].split(splits[r]) for r, x in enumerate(inputs)]
        return [[torch.cat([p[r] for p in parts])] for r in range(size)]

    def ours(xs):
        y, received = hvd.alltoall(xs[0], splits[rank])
        assert received.tolist() == [row[rank] for row in splits]
        assert received.dtype is torch.int32
        return [y]

    check(lambda xs: [hvd.alltoall(xs[0])], equal, same((size, 2)))
    check(ours, uneven, lambda r: ((sum(splits[r]), 2),))


@fact
def reducescatter():
    n = size
    check(lambda xs: [hvd.reducescatter(xs[0])], scattered(1 / n), same((2 * n, 3)), n)
    check(lambda xs: [hvd.reducescatter(xs[0], op=hvd.Sum)], scattered(1), same((n + 1, 2)), n)
    check(lambda xs: hvd.grouped_reducescatter(xs, "x", op=hvd.Sum, prescale_factor=2.0),
          scattered(2), same((2 * n - 1,), (1, 2)), n)


@fact
def gradients_of_gradients():
    x = torch.full((2,), 3.0, requires_grad=True)
    (first,) = torch.autograd.grad((hvd.allreduce(x, op=hvd.Sum) ** 2).sum(), x, create_graph=True)
    assert torch.allclose(first, torch.full((2,), 2.0 * size * size * 3))
    first.sum().backward()
    assert torch.allclose(x.grad, torch.full((2,), 2.0 * size * size))


@fact
def strides_of_gradients_may_differ():
    x = torch.ones(3, 4, requires_grad=True)
    y = hvd.allreduce(x, op=hvd.Sum)
    (y.t() @ torch.ones(3, 1) if rank else y).sum().backward()
    assert torch.equal(x.grad, torch.full((3, 4), float(size)))


@fact
def in_a_compiled_function():
    def double(x):
        return hvd.allreduce(2 * x, op=hvd.Sum) + 1

    x = torch.ones(3, requires_grad=True)
    y = torch.compile(double, backend="eager")(x)
    y.sum().backward()
    assert torch.equal(y.detach(), torch.full((3,), 2.0 * size + 1))
    assert torch.equal(x.grad, torch.full((3,), 2.0 * size))


@fact
def from_several_threads():
    from concurrent.futures import ThreadPoolExecutor

    def work(i):
        x = torch.full((100,), float(rank + i), requires_grad=True)
        for step in range(20):
            y = hvd.allreduce(x, name=f"thread.{i}", op=hvd.Sum)
            assert torch.equal(y.detach(), torch.full((100,), sum(range(size)) + size * float(i)))
            y.sum().backward()
        assert torch.equal(x.grad, torch.full((100,), 20.0 * size))

    order = range(4) if rank else reversed(range(4))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, order))
"""

_SIZES = pytest.mark.parametrize("np", [2, 3, 4])


@pytest.mark.ranks
@_SIZES
@pytest.mark.parametrize("name", ["allreduce", "alltoall"])
def test_gradients_are_those_of_the_sum_of_all_losses(holds: Holds, name: str, np: int) -> None:
    holds(_JOINT, name, np)


@pytest.mark.ranks
@_SIZES
@pytest.mark.parametrize("name", ["allgather", "broadcast"])
def test_gradients_of_gathered_rows_are_averaged(holds: Holds, name: str, np: int) -> None:
    holds(_JOINT, name, np)


@pytest.mark.ranks
@_SIZES
def test_gradients_of_scattered_rows_are_gathered(holds: Holds, np: int) -> None:
    holds(_JOINT, "reducescatter", np)


@pytest.mark.ranks
def test_gradients_have_gradients(holds: Holds) -> None:
    holds(_JOINT, "gradients_of_gradients")


@pytest.mark.ranks
def test_gradients_may_be_laid_out_differently_on_each_rank(holds: Holds) -> None:
    holds(_JOINT, "strides_of_gradients_may_differ")


@pytest.mark.ranks
def test_collectives_work_in_a_compiled_function(holds: Holds) -> None:
    holds(_JOINT, "in_a_compiled_function")


@pytest.mark.ranks
def test_threads_reduce_and_pull_back_at_the_same_time(holds: Holds) -> None:
    holds(_JOINT, "from_several_threads")
