"""All optimizers of torch, and what options do: groups, sparse gradients, compressors, Adasum."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.ranks

Holds = Callable[..., None]

_OPTIMIZERS = """
def net():
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 3, bias=False))


def follow(make):
    model = net().double()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    alone = copy.deepcopy(model)
    optimizer, bare = hvd.DistributedOptimizer(make(model.parameters())), make(alone.parameters())
    data = torch.Generator().manual_seed(1)
    for _ in range(5):
        x = torch.randn(8, 4, generator=data, dtype=torch.float64)
        for m, o, xs in ((alone, bare, x), (model, optimizer, x[rank::2])):
            o.zero_grad()
            m(xs).square().mean().backward()
            o.step()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert same_everywhere(*model.parameters())


KINDS = [
    kind for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    and kind.__name__ not in ("Optimizer", "LBFGS", "SparseAdam")
]


@fact
def plain():
    assert len(KINDS) >= 12, KINDS
    for kind in KINDS:
        follow(lambda params: kind(params, lr=1e-3))


@fact
def foreach_and_fused():
    forms = 0
    for kind in KINDS:
        for form in ("foreach", "fused"):
            try:
                kind([torch.ones(2, 2)], lr=1e-3, **{form: True})
            except (TypeError, RuntimeError):
                continue  # has no such form for CPUs
            forms += 1
            follow(lambda params: kind(params, lr=1e-3, **{form: True}))
    assert forms >= 10, forms


@fact
def with_state():
    follow(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1))
    follow(lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True, weight_decay=0.1))
"""


@pytest.mark.parametrize("fact", ["plain", "foreach_and_fused", "with_state"])
def test_every_optimizer_of_torch_follows_one_process(holds: Holds, fact: str) -> None:
    holds(_OPTIMIZERS, fact)


_OPTIONS = """
def wrapped(*params, **options):
    return hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), **options)


@fact
def groups():
    params = [ones(3), ones(2).double().detach().requires_grad_(), ones(4), ones(5), ones(1)]
    a, b, c, d, e = params
    for given, expected in (
        (0, 2), (1, 2), (2, 3), (99, 5), ([[a, d], [b, c]], 4), ([[e], [a]], 4), ([], 2),
    ):
        optimizer = wrapped(*params, groups=given)
        for step in range(3):
            before = hvd.stats().buckets
            optimizer.zero_grad()
            # a is used on one rank, c on none
            loss = ((b.sum() + d.sum() + e.sum()) * (1 + rank)).float()
            (loss + a.sum() * 4 if rank else loss).backward()
            optimizer.step()
            assert torch.equal(a.grad, torch.full((3,), 2.0)) and c.grad is None
            assert all(torch.equal(p.grad, torch.full_like(p, 1.5)) for p in (b, d, e))
            made = hvd.stats().buckets - before - 2 * (step == 0)
            assert made == expected, (given, made)
        assert same_everywhere(*params)
        del optimizer


@fact
def different_groups():
    a, b = ones(3), ones(3)
    optimizer = wrapped(a, b, groups=[[a, b]] if rank else [[a], [b]])
    try:
        (a + b).sum().backward()
        optimizer.step()
    except hvd.MismatchError as error:
        assert "options" in str(error) or "the group differs" in str(error), error
    else:
        raise AssertionError("no error")


def embed(table, rows):
    return nn.functional.embedding(torch.tensor(rows), table, sparse=True)


@fact
def sparse():
    for make in (
        lambda p: torch.optim.SGD(p, lr=1.0), lambda p: torch.optim.SparseAdam(p, lr=0.1),
    ):
        table = ones(6, 2)
        other = copy.deepcopy(table)
        optimizer, bare = hvd.DistributedOptimizer(make([table])), make([other])
        for step in range(4):
            optimizer.zero_grad()
            bare.zero_grad()
            if step < 3 or rank:  # in the last step one rank has no gradient
                embed(table, [rank, 2, 2]).sum().backward()
            optimizer.synchronize()
            assert table.grad.is_sparse
            rows = [0, 2, 2, 1, 2, 2] if step < 3 else [1, 2, 2]
            (embed(other, rows).sum() / 2).backward()
            assert torch.equal(table.grad.to_dense(), other.grad.to_dense())
            optimizer.step()
            bare.step()
            assert torch.equal(table, other)
            assert same_everywhere(table)


@fact
def sparse_as_dense():
    table, used = ones(6, 2), ones(3)
    optimizer = wrapped(table, used, sparse_as_dense=True)
    for _ in range(2):
        optimizer.zero_grad()
        (embed(table, [rank, 2, 2]).sum() + used.sum() * rank).backward()
        optimizer.step()
        assert table.grad.layout is torch.strided
        assert torch.equal(table.grad[:, 0], torch.tensor([0.5, 0.5, 2.0, 0.0, 0.0, 0.0]))
        assert torch.equal(used.grad, torch.full((3,), 0.5))


@fact
def late_sparse():
    table, used = ones(6, 2), ones(3)
    optimizer = wrapped(table, used)
    for step in range(3):
        optimizer.zero_grad()
        try:
            (used.sum() + (embed(table, [1]).sum() if step else 0)).backward()
            optimizer.step()
            assert step == 0
        except (hvd.ArgumentError, hvd.RemoteError) as error:
            assert "'group0.param0'" in str(error) and "sparse_as_dense=True" in str(error), error


class Halves:
    calls = 0

    @staticmethod
    def compress(tensor):
        Halves.calls += 1
        return (tensor / 2).double(), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return (tensor * 2).to(ctx)


@fact
def compressor():
    a, b, c = ones(3), ones(2, 2), ones(1)
    optimizer = wrapped(a, b, c, compression=Halves)
    for step in range(3):
        optimizer.zero_grad()
        loss = (a.sum() + b.sum()) * (1 + rank)
        (loss if rank else loss - a.sum()).backward()
        optimizer.step()
        assert torch.equal(a.grad, torch.full((3,), 1.0))
        assert torch.equal(b.grad, torch.full((2, 2), 1.5)) and c.grad is None
        assert a.grad.dtype is torch.float32 and Halves.calls == 3 * (step + 1)
    assert same_everywhere(a, b, c)


@fact
def adasum():
    def combine(x, y):
        dot = (x * y).sum()
        return x * (1 - dot / (2 * x.square().sum())) + y * (1 - dot / (2 * y.square().sum()))

    a, b, unused = ones(3).double().detach().requires_grad_(), ones(2), ones(2)
    optimizer = wrapped(a, b, unused, op=hvd.Adasum)
    for step in range(3):
        before = [a.detach().clone(), b.detach().clone()]
        slopes = [torch.tensor(s, dtype=torch.float64) for s in ([1, 2, 3], [-1, 5, 0.5])]
        for r in (0, 1):
            slopes[r] *= 1 + step
        optimizer.zero_grad()
        ((a * slopes[rank]).sum() + (b * torch.tensor([3.0, 0.0])).sum()).backward()
        nn.utils.clip_grad_norm_([a, b], 1e9)
        optimizer.synchronize()
        assert optimizer.step() is None
        torch.testing.assert_close(a.detach(), before[0] + combine(-slopes[0], -slopes[1]))
        torch.testing.assert_close(b.detach(), before[1] + torch.tensor([-3.0, 0.0]))
    assert torch.equal(unused, torch.ones(2)) and same_everywhere(a, b)
    try:
        with optimizer.skip_synchronize():
            optimizer.step()
    except hvd.ArgumentError as error:
        assert "can't be skipped" in str(error)
    else:
        raise AssertionError("a step of Adasum was skipped")


@fact
def adasum_that_fails():
    a = ones(3 + rank)
    optimizer = wrapped(a, op=hvd.Adasum)
    for _ in range(2):
        a.sum().backward()
        try:
            optimizer.step()
        except hvd.MismatchError as error:
            assert "the shape differs" in str(error)
        assert torch.equal(a, torch.ones(3 + rank))
    b = ones(3)
    other = wrapped(b, op=hvd.Adasum)
    b.sum().backward()
    other.step()
    assert torch.equal(b, torch.zeros(3))
    b.data = b.data.half()
    b.grad = None
    b.sum().backward()
    other.step()
    assert torch.equal(b, torch.full((3,), -1.0, dtype=torch.float16))
"""


@pytest.mark.parametrize("fact", ["groups", "different_groups"])
def test_groups_are_reduced_together_whatever_is_unused(holds: Holds, fact: str) -> None:
    holds(_OPTIONS, fact)


@pytest.mark.parametrize("fact", ["sparse", "sparse_as_dense", "late_sparse"])
def test_sparse_gradients_are_reduced_as_they_are_or_as_dense_ones(holds: Holds, fact: str) -> None:
    holds(_OPTIONS, fact)


def test_a_compressor_of_ones_own_is_called_for_each_gradient(holds: Holds) -> None:
    holds(_OPTIONS, "compressor")


@pytest.mark.parametrize("fact", ["adasum", "adasum_that_fails"])
def test_adasum_combines_what_local_steps_changed(holds: Holds, fact: str) -> None:
    holds(_OPTIONS, fact)
