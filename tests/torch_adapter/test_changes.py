"""What changes after the wrapping: frozen and thawed, cast, laid out anew, replaced."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.ranks

Holds = Callable[..., None]

_CHANGES = """
def fails(run, *words, kinds=(hvd.MismatchError, hvd.ArgumentError, hvd.RemoteError)):
    try:
        run()
    except kinds as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("no error")


def train(optimizer, params, steps=3):
    for step in range(steps):
        optimizer.zero_grad()
        sum((p * (1 + rank + step)).sum() for p in params).backward()
        for p in params:  # reduced when backward returns
            assert torch.equal(p.grad, torch.full_like(p, 1.5 + step)), (step, p.grad)
        optimizer.step()
    assert same_everywhere(*params)


def wrapped(*params, **options):
    return hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), **options)


@fact
def a_parameter_in_the_place_of_another():
    a, b, c = ones(3), ones(2), ones(2)
    optimizer = wrapped(a, b)
    train(optimizer, [a, b])
    optimizer.param_groups[0]["params"][1] = c
    for step in range(3):
        optimizer.zero_grad()
        ((a.sum() + c.sum()) * (1 + rank + step)).backward()
        optimizer.synchronize()  # backward does not wait: b, which has no gradient, is counted for
        assert all(torch.equal(p.grad, torch.full_like(p, 1.5 + step)) for p in (a, c))
        optimizer.step()
    assert same_everywhere(a, c)


@fact
def a_parameter_of_another_wrapper_can_not_be_added():
    a, b = ones(3), ones(2)
    first, second = wrapped(a), wrapped(b)
    fails(lambda: first.add_param_group({"params": [b]}), "reduced twice")
    train(first, [a])
    train(second, [b])


@fact
def clipping_what_is_in_flight():
    # b gets no gradient, so backward does not wait, and a is on its way when it is clipped.
    a, b = ones(1000), ones(3)
    optimizer = wrapped(a, b, groups=[[a], [b]])
    train(optimizer, [a, b])
    optimizer.zero_grad()
    (a.sum() * (1 + rank)).backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_([a], 1.0)
    assert abs(a.grad.norm() - 1.0) < 1e-4
    optimizer.step()
    assert abs(a.grad.norm() - 1.0) < 1e-4
    optimizer.zero_grad()
    (a.sum() * (1 + rank)).backward()
    torch.nn.utils.clip_grad_norm_([a], 1.0)
    fails(optimizer.step, "call synchronize() first")
    train(optimizer, [a, b])


@fact
def unfreezing():
    a, b = ones(3), ones(2).requires_grad_(False)
    optimizer = wrapped(a, b)
    train(optimizer, [a])
    assert torch.equal(b, torch.ones(2)) and b.grad is None
    b.requires_grad_(True)
    train(optimizer, [a, b])


@fact
def unfreezing_without_zero_grad():
    a, b = ones(3), ones(2).requires_grad_(False)
    optimizer = wrapped(a, b)
    b.requires_grad_(True)
    ((a + 2 * b.sum()) * rank).sum().backward()
    optimizer.step()
    assert torch.equal(a.grad, torch.full((3,), 0.5)) and torch.equal(b.grad, torch.full((2,), 3.0))


@fact
def unfreezing_on_one_rank():
    a, b = ones(3), ones(2).requires_grad_(False)
    optimizer = wrapped(a, b)
    train(optimizer, [a])
    if rank == 0:
        b.requires_grad_(True)

    def step():
        optimizer.zero_grad()
        ((a.sum() + b.sum()) * (1 + rank)).backward()
        optimizer.step()

    before = a.detach().clone()
    fails(step, "group0.param1" if rank == 0 else "allgather", kinds=(hvd.MismatchError,))
    assert torch.equal(a, before)
    step()  # all know of it now; what is frozen here counts as unused
    assert torch.equal(b.grad, torch.full((2,), 0.5)) and same_everywhere(a, b)
    b.requires_grad_(True)
    train(optimizer, [a, b])


@fact
def freezing():
    a, b = ones(3), ones(2)
    optimizer = wrapped(a, b)
    train(optimizer, [a, b])
    b.requires_grad_(False)
    optimizer.zero_grad()
    a.sum().backward()
    optimizer.step()
    frozen = b.detach().clone()
    train(optimizer, [a])
    assert torch.equal(b, frozen) and b.grad is None
    b.requires_grad_(True)
    optimizer.zero_grad()
    (a.sum() * rank + b.sum() * rank).backward()
    optimizer.step()
    assert torch.equal(b.grad, torch.full((2,), 0.5))
    train(optimizer, [a, b])


@fact
def toggling():  # as GANs do around the other loss
    a, b = ones(3), ones(2)
    optimizer = wrapped(a, b)
    for _ in range(3):
        a.requires_grad_(False)
        a.requires_grad_(True)
        train(optimizer, [a, b], steps=1)


@fact
def all_frozen_on_one_rank():
    a, b = ones(3), ones(2)
    if rank == 1:
        a.requires_grad_(False), b.requires_grad_(False)
    optimizer = wrapped(a, b)
    for _ in range(2):
        optimizer.zero_grad()
        if rank == 0:
            (a.sum() + b.sum()).backward()
        optimizer.step()
        assert torch.equal(a.grad, torch.full((3,), 0.5))
        assert same_everywhere(a, b)
    a.requires_grad_(True), b.requires_grad_(True)
    train(optimizer, [a, b])


@fact
def all_frozen():
    a = ones(3).requires_grad_(False)
    optimizer = wrapped(a)
    for _ in range(2):
        optimizer.zero_grad()
        optimizer.step()
    assert torch.equal(a, torch.ones(3)) and a.grad is None
    a.requires_grad_(True)
    train(optimizer, [a])


@fact
def cast():
    for none in (True, False):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for cast in (lambda m: m, lambda m: m.half(), lambda m: m[1].float(), lambda m: m.double()):
            cast(model)
            for _ in range(2):
                optimizer.zero_grad(set_to_none=none)
                sum((p * (1 + rank)).sum() for p in model.parameters()).backward()
                optimizer.step()
                assert all(torch.equal(p.grad, torch.full_like(p, 1.5)) for p in model.parameters())
                assert all(p.grad.dtype is p.dtype for p in model.parameters())
            assert same_everywhere(*model.parameters())


@fact
def cast_on_one_rank():
    model = nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))

    def step():
        optimizer.zero_grad()
        sum((p * (1 + rank)).sum() for p in model.parameters()).backward()
        optimizer.step()

    step()
    if rank == 1:
        model.half()
    fails(step, "optimizer.", kinds=(hvd.MismatchError,))
    fails(step, "the dtype differs", "rank 0: float32", "rank 1: float16")
    model.half()
    step()
    assert torch.equal(model.bias.grad, torch.full((2,), 1.5, dtype=torch.float16))


@fact
def memory_format():
    model = nn.Conv2d(3, 4, 3)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for layout in (torch.contiguous_format, torch.channels_last):
        model.to(memory_format=layout)
        slopes = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(1))
        optimizer.zero_grad()
        ((model.weight * slopes).sum() * 2 * rank).backward()
        optimizer.step()
        assert torch.equal(model.weight.grad, slopes)
        assert model.weight.grad.stride() == model.weight.stride()


@fact
def mixed_strides():
    model = nn.Conv2d(3, 4, 3)
    if rank == 1:
        model.to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    run = lambda: (model(torch.ones(1, 3, 3, 3)).sum().backward(), optimizer.step())
    fails(run, "'weight': the memory order (strides) differs", "rank 0: C", "rank 1: axes")
    model.to(memory_format=torch.channels_last)
    optimizer.zero_grad()
    run()


@fact
def replaced_data():
    a, b = ones(3), ones(2, 3)
    optimizer = wrapped(a, b)
    train(optimizer, [a, b])
    a.data = torch.ones(3)  # as it was laid out: nothing to notice
    train(optimizer, [a, b])
    b.data = torch.ones(3, 2)  # otherwise, but alike on all ranks
    train(optimizer, [a, b])


@fact
def replaced_parameters():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
    )

    def step(layers=model):
        optimizer.zero_grad()
        layers(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    step()
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    for _ in range(2):
        fails(step, "'0.weight' of the model is another tensor", "wrap it again")
    del optimizer
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
    )
    step()
    model[1].weight = model[0].weight  # tied late: the optimizer has this one
    step(model[0])
    if rank == 1:
        model[0].bias = nn.Parameter(torch.zeros(2))
    fails(lambda: step(model[0]), "'0.bias' of the model is another tensor")


@fact
def different_parameters():
    model = nn.ModuleDict({"body": nn.Linear(2, 2), "head" if rank else "tail": nn.Linear(2, 1)})
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
    )
    fails(optimizer.step, "rank 1 has no parameter 'tail.weight', which rank 0 has")


@fact
def order_of_parameters():
    a, b = ones(3), ones(3)
    named = [("a", a), ("b", b)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([a, b], lr=1.0), named if rank else named[::-1]
    )
    for _ in range(2):
        optimizer.zero_grad()
        (a.sum() * 2 * rank + b.sum() * 4 * rank).backward()
        optimizer.step()
        assert torch.equal(a.grad, torch.full((3,), 1.0)), a.grad
        assert torch.equal(b.grad, torch.full((3,), 2.0)), b.grad


@fact
def added_behind_our_back():
    a, b = ones(2), ones(2)
    bare = torch.optim.SGD([a], lr=1.0)
    optimizer = hvd.DistributedOptimizer(bare)
    train(optimizer, [a])
    bare.add_param_group({"params": [b]})
    train(optimizer, [a, b])


@fact
def different_options():
    a = ones(2)
    optimizer = wrapped(a, op=hvd.Sum if rank else hvd.Average)
    fails(lambda: (a.sum().backward(), optimizer.step()), "rank 0: op average", "rank 1: op sum")
"""


@pytest.mark.parametrize(
    "fact",
    [
        "unfreezing", "unfreezing_without_zero_grad", "unfreezing_on_one_rank", "freezing",
        "toggling", "all_frozen_on_one_rank", "all_frozen",
    ],
)  # fmt: skip
def test_what_is_frozen_may_change(holds: Holds, fact: str) -> None:
    holds(_CHANGES, fact)


@pytest.mark.parametrize("fact", ["cast", "memory_format", "replaced_data"])
def test_parameters_may_be_laid_out_anew(holds: Holds, fact: str) -> None:
    holds(_CHANGES, fact)


@pytest.mark.parametrize(
    "fact", ["cast_on_one_rank", "mixed_strides", "different_parameters", "different_options"]
)
def test_what_is_not_alike_on_all_ranks_is_named(holds: Holds, fact: str) -> None:
    holds(_CHANGES, fact)


def test_parameters_may_be_listed_in_another_order_on_each_rank(holds: Holds) -> None:
    holds(_CHANGES, "order_of_parameters")


def test_a_parameter_that_the_optimizer_lost_is_noticed(holds: Holds) -> None:
    holds(_CHANGES, "replaced_parameters")


def test_a_parameter_may_take_the_place_of_another(holds: Holds) -> None:
    holds(_CHANGES, "a_parameter_in_the_place_of_another")


def test_a_parameter_of_another_wrapper_can_not_be_added(holds: Holds) -> None:
    holds(_CHANGES, "a_parameter_of_another_wrapper_can_not_be_added")


def test_what_is_in_flight_can_not_be_clipped_without_notice(holds: Holds) -> None:
    holds(_CHANGES, "clipping_what_is_in_flight")


def test_a_group_added_to_the_wrapped_optimizer_is_reduced(holds: Holds) -> None:
    holds(_CHANGES, "added_behind_our_back")
