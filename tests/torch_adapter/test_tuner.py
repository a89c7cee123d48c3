"""Buckets that change their size and order while a job trains."""

from __future__ import annotations

import pytest

from harness import run_ranks

pytestmark = pytest.mark.ranks

_TRAIN = """
    import torch
    import commrt
    import commrt.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(7)

    def plan(optimizer):
        return optimizer._reducer._fleet.plan

    def layers(optimizer):
        return [[m.name for m in bucket.members] for bucket in plan(optimizer).buckets]

    def same(tensors):
        flat = torch.cat([t.detach().reshape(-1) for t in tensors])
        every = hvd.allgather(flat[None])
        assert torch.equal(every, every[:1].expand_as(every))
"""


def ok(script: str, np: int, **env: str) -> None:
    result = run_ranks(_TRAIN + script, np, env=env)
    assert result.status == 0, result.output
    assert result.stdout_of == dict.fromkeys(range(np), "ok\n"), result.output


def test_training_with_sizes_and_orders_that_change_is_that_of_one_process() -> None:
    ok(
        """
    def model():
        torch.manual_seed(1)
        return torch.nn.Sequential(*[torch.nn.Linear(400, 400) for _ in range(8)])

    ours, alone = model(), model()
    params = list(ours.parameters())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, 0.05, momentum=0.9),
                                         named_parameters=ours.named_parameters())
    single = torch.optim.SGD(alone.parameters(), 0.05, momentum=0.9)
    sizes = set()
    for step in range(40):
        batches = [torch.randn(4, 400, generator=torch.Generator().manual_seed(99 * step + r))
                   for r in range(size)]
        optimizer.zero_grad()
        ours(batches[rank]).pow(2).mean().backward()
        optimizer.step()
        single.zero_grad()
        alone(torch.cat(batches)).pow(2).mean().backward()
        single.step()
        sizes.add(len(plan(optimizer).buckets))
    assert all(a is b for a, b in zip(params, ours.parameters()))
    for p, q in zip(ours.parameters(), alone.parameters()):
        assert torch.allclose(p, q, rtol=1e-4, atol=1e-6), (p - q).abs().max()
    same(params)
    assert len(sizes) > 1, "buckets never changed"
    print("ok")
        """,
        2,
    )


@pytest.mark.parametrize("bucket", ["auto", "4KiB", "formula"])
def test_after_the_first_step_gradients_lie_in_the_order_in_which_rank_0_saw_them(
    bucket: str,
) -> None:
    ok(
        """
    class Crossed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = (torch.nn.Linear(30, 30, bias=False) for _ in "abcd")
        def forward(self, x):
            x = self.d(self.b(x))
            # Ranks differ in which of two branches they run first.
            return (self.a(x), self.c(x)) if rank == 0 else (self.c(x), self.a(x))

    model = Crossed()
    hvd.broadcast_parameters(model.state_dict(), 0)
    seen = []
    for name, param in model.named_parameters():
        param.register_post_accumulate_grad_hook(lambda _, name=name: seen.append(name))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1e-4),
                                         named_parameters=model.named_parameters())
    for step in range(6):
        optimizer.zero_grad()
        seen.clear()
        sum(y.sum() for y in model(torch.ones(2, 30))).backward()
        optimizer.step()
        same(model.parameters())
    expected = hvd.broadcast_object(list(seen), 0)
    assert [name for bucket in layers(optimizer) for name in bucket] == expected, layers(optimizer)
    assert expected[-2:] == ["d.weight", "b.weight"]
    print("ok")
        """,
        2,
        COMMRT_BUCKET=bucket,
    )


def test_gradients_that_were_kept_survive_another_order() -> None:
    ok(
        """
    model = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.Linear(9, 9))
    model = torch.nn.ModuleList([model[1], model[0]])  # used in reverse
    for p in model.parameters():
        torch.nn.init.ones_(p)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.0),
                                         named_parameters=model.named_parameters())
    def backward(x):
        model[0](model[1](torch.full((1, 9), x))).sum().backward()
    backward(rank + 1.0)
    first = [p.grad.clone() for p in model.parameters()]
    before = [m.index for bucket in plan(optimizer).buckets for m in bucket.members]
    optimizer.step()
    assert [m.index for b in plan(optimizer).buckets for m in b.members] != before
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), first))
    optimizer.zero_grad(set_to_none=False)
    for p in model.parameters():
        p.grad += 1
    backward(rank + 1.0)  # adds to what is there
    optimizer.step()
    assert all(torch.equal(p.grad, g + 1) for p, g in zip(model.parameters(), first))
    print("ok")
        """,
        2,
    )


def test_a_decision_is_made_without_a_rank_that_has_joined() -> None:
    ok(
        """
    model = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(9)])
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01),
                                         named_parameters=model.named_parameters())
    for step in range(3 if rank == 0 else 30):  # the rank that decides joins first
        optimizer.zero_grad()
        model(torch.ones(2, 300)).pow(2).mean().backward()
        optimizer.step()
    hvd.join()
    hvd.broadcast_parameters(model.state_dict(), 1)
    for step in range(30):
        optimizer.zero_grad()
        model(torch.ones(2, 300)).pow(2).mean().backward()
        optimizer.step()
    same(model.parameters())
    print("ok")
        """,
        3,
    )


def test_passes_without_reductions_add_up() -> None:
    ok(
        """
    def model():
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 3))

    ours, alone = model(), model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), 0.1),
                                         named_parameters=ours.named_parameters(), bucket=1024)
    single = torch.optim.SGD(alone.parameters(), 0.1)
    for step in range(12):
        optimizer.zero_grad()
        single.zero_grad()
        inputs = torch.randn(size, 3, 4, 20, generator=torch.Generator().manual_seed(step))
        before = hvd.stats().buckets
        with optimizer.no_sync():
            for x in inputs[rank, :2]:
                ours(x).pow(2).mean().backward()
        assert hvd.stats().buckets == before
        ours(inputs[rank, 2]).pow(2).mean().backward()
        optimizer.step()
        for x in inputs.reshape(-1, 4, 20):
            (alone(x).pow(2).mean() / size).backward()
        single.step()
    for p, q in zip(ours.parameters(), alone.parameters()):
        assert torch.allclose(p, q, rtol=1e-4, atol=1e-6)
    same(ours.parameters())
    ours(inputs[0, 0]).sum().backward()
    try:
        with optimizer.no_sync():
            pass
    except hvd.ArgumentError:
        print("ok")
        """,
        2,
    )


def test_a_deterministic_optimizer_gives_the_same_bits_in_two_runs() -> None:
    script = """
    model = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(9)])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.05),
                                         named_parameters=model.named_parameters(),
                                         bucket=100_000, deterministic=True)
    hvd.broadcast_parameters(model.state_dict(), 0)
    generator = torch.Generator().manual_seed(rank)
    for step in range(20):
        optimizer.zero_grad()
        model(torch.randn(4, 300, generator=generator)).pow(2).mean().backward()
        optimizer.step()
    import hashlib
    bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(hashlib.sha256(bits).hexdigest())
    """
    results = [run_ranks(_TRAIN + script, 3, env={"COMMRT_TRANSPORT": "tcp"}) for _ in range(2)]
    assert [result.status for result in results] == [0, 0], results[0].output
    digests = {text for result in results for text in result.stdout_of.values()}
    assert len(digests) == 1


def test_tensors_that_users_moved_come_back_whatever_is_cut_anew() -> None:
    ok(
        """
    model = torch.nn.Sequential(*[torch.nn.Linear(60, 60, bias=False) for _ in range(8)])
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01),
                                         named_parameters=model.named_parameters(), bucket=4096)
    generator = torch.Generator().manual_seed(rank)
    for step in range(8):
        optimizer.zero_grad(set_to_none=False)
        model(torch.randn(4, 60, generator=generator)).pow(2).sum().backward()
        for p in model.parameters():
            p.grad.data = p.grad.data.clamp(-1, 1)
        optimizer.step()
        same(model.parameters())
    print("ok")
        """,
        2,
    )


def test_passes_without_reductions_may_be_nested() -> None:
    ok(
        """
    model = torch.nn.Linear(4, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.0), op=hvd.Sum,
                                         named_parameters=model.named_parameters())
    def backward():
        model(torch.ones(1, 4)).sum().backward()
    for step in range(3):
        optimizer.zero_grad()
        with optimizer.no_sync():
            with optimizer.no_sync():
                backward()
            backward()
        backward()
        optimizer.step()
        assert torch.equal(model.weight.grad, torch.full((1, 4), 3.0 * size))
    print("ok")
        """,
        2,
    )


@pytest.mark.parametrize("step", [4, 8])  # after the second there is something to decide
def test_a_gradient_too_many_ends_a_cycle_of_one_of_two_optimizers_everywhere(step: int) -> None:
    ok(
        f"""
    large = torch.nn.Sequential(*[torch.nn.Linear(400, 400) for _ in range(4)])
    models = large, torch.nn.Linear(2, 2)
    optimizer, _ = [hvd.DistributedOptimizer(torch.optim.SGD(m.parameters(), 0.01),
                                             named_parameters=m.named_parameters()) for m in models]
    errors = []
    for step in range(1, 13):
        try:
            optimizer.zero_grad()
            models[0](torch.ones(2, 400)).pow(2).mean().backward()
            if step == {step} and rank == 1:
                models[0](torch.ones(2, 400)).pow(2).mean().backward()
            optimizer.step()
        except commrt.CommError as error:
            errors.append((step, type(error).__name__))
    assert errors[-1][0] == {step} + 1, errors
    assert rank or errors == [({step} + 1, "RemoteError")], errors
    print("ok")
        """,
        2,
    )
