"""`ddp_hook` under DistributedDataParallel, and what becomes of it when a rank fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import run_ranks

pytestmark = pytest.mark.ranks

Holds = Callable[..., None]

_SETUP = """
import os
import threading

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commrt.api import session

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo")
SMALL = 0.0002  # MiB: a bucket for each layer of these


def wrap(model, compression=hvd.Compression.none, process_set=hvd.global_process_set, **options):
    ddp = DistributedDataParallel(model, **options)
    ddp.register_comm_hook(None, hvd.ddp_hook(compression, process_set))
    return ddp


class Heads(nn.Module):
    # Layers side by side: each gradient of a linear loss is a sum over samples.
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(7, 5) for _ in range(4))

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], 1)
"""

_JOINT = (
    _SETUP
    + """
def follow(**options):
    model = Heads()
    alone = copy.deepcopy(model)
    ddp = wrap(model, bucket_cap_mb=SMALL, **options)
    n = 4 * size
    data = torch.Generator().manual_seed(1)
    before = hvd.stats().buckets
    for step in range(4):
        x, slope = (torch.randn(n, k, generator=data) for k in (7, 20))

        def compute(module, xs, slopes):
            module.zero_grad(set_to_none=step % 2 == 0)
            ((module(xs) * slopes).sum() / len(xs)).backward()
            return [p.grad.clone() for p in module.parameters()]

        joint = compute(alone, x, slope)
        each = [compute(alone, x[i : i + 1], slope[i : i + 1]) for i in range(n)]
        ours = compute(ddp, x[rank::size], slope[rank::size])
        assert same_everywhere(*ours)
        for mine, its, terms in zip(ours, joint, zip(*each), strict=True):
            magnitude = torch.stack(terms).abs().sum(0) / n
            assert ((mine - its).abs() <= n * torch.finfo(torch.float32).eps * magnitude).all()
    assert hvd.stats().buckets > before


@fact
def gradients():
    for view in (False, True):
        follow(gradient_as_bucket_view=view)


@fact
def static_graph():
    for view in (False, True):
        follow(static_graph=True, gradient_as_bucket_view=view)


@fact
def looking_for_unused():
    for view in (False, True):
        follow(find_unused_parameters=True, gradient_as_bucket_view=view)
"""
)

_RANKS = (
    _SETUP
    + """
class Three(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = ones(3), ones(3), ones(3)

    def forward(self):  # a on both ranks, b on one, c on none
        return (2 * self.a).sum() + (4 * self.b).sum() if rank else (6 * self.a).sum()


@fact
def unused():
    for view in (False, True):
        model = Three()
        ddp = wrap(model, find_unused_parameters=True, gradient_as_bucket_view=view)
        for _ in range(3):
            ddp.zero_grad()
            ddp().backward()
            assert torch.equal(model.a.grad, torch.full((3,), 4.0))
            assert torch.equal(model.b.grad, torch.full((3,), 2.0))
            assert model.c.grad is None


@fact
def two_models():
    models = [
        nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)).double(),
        nn.Sequential(nn.Linear(3, 9), nn.Tanh(), nn.Linear(9, 5)).double(),
    ]
    alone = copy.deepcopy(models)
    ours = [wrap(model, bucket_cap_mb=SMALL) for model in models]

    def optimizer(pair):
        params = [p for module in pair for p in module.parameters()]
        return torch.optim.SGD(params, lr=0.05, momentum=0.9)

    optimizers = [(alone, optimizer(alone)), (ours, optimizer(ours))]
    data = torch.Generator().manual_seed(1)
    for _ in range(20):
        x = torch.randn(8 * size, 5, generator=data, dtype=torch.float64)
        for ((first, second), optimizer), xs in zip(optimizers, (x, x[rank::size])):
            optimizer.zero_grad()
            nn.functional.mse_loss(second(first(xs)), xs).backward()  # both, side by side
            second(xs[:, :3]).square().mean().backward()
            optimizer.step()
    for model, other in zip(models, alone, strict=True):
        for mine, its in zip(model.parameters(), other.parameters(), strict=True):
            assert (mine - its).norm() <= 1e-10 * its.norm()
        assert same_everywhere(*model.parameters())


def names(ddp):
    before = len(session().runtime.trace())
    ddp(torch.ones(1, 7)).sum().backward()
    hvd.barrier()
    records = session().runtime.trace()[before:]
    return sorted(name for r in records for name in r.names if name.startswith("ddp."))


@fact
def stable_names():
    ddp, other = wrap(Heads(), bucket_cap_mb=SMALL), wrap(Heads())
    for _ in range(3):
        names(ddp)
    found = names(ddp)
    assert found and found == names(ddp)
    assert sum(int(name.split("/")[2]) for name in found) == 4 * (7 * 5 + 5), found
    first = int(found[0].split("/")[0].split(".")[1])
    assert [n.split("/")[:2] for n in found] == [
        [f"ddp.{first}", f"bucket.{i}"] for i in range(len(found))
    ]
    assert names(other) == [f"ddp.{first + 1}/bucket.0/160"]


class One(nn.Module):
    def __init__(self, n=3):
        super().__init__()
        self.p = ones(n)

    def forward(self, slope):
        return (self.p * slope).sum()


def gradient(slope, compression=hvd.Compression.none, **options):
    model = One()
    ddp = wrap(model, compression, **options)
    ddp(slope).backward()
    assert model.p.grad.dtype is torch.float32 and same_everywhere(model.p.grad)
    return model.p.grad[0].item()


class Eighths:
    # Integers that stand for eighths: they can be added up.
    @staticmethod
    def compress(tensor):
        return (tensor * 8).round().to(torch.int8), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor.to(ctx) / 8


@fact
def compression():
    for view in (False, True):
        def reduced(slope, compression=hvd.Compression.none):
            return gradient(slope, compression, gradient_as_bucket_view=view)

        assert reduced(1.0 + 2**-12) == 1.0 + 2**-12
        assert reduced(1.0 + 2**-12, hvd.Compression.fp16) == 1.0
        assert reduced(1.0 + 2**-9, hvd.Compression.bf16) == 1.0
        assert reduced(65504.0, hvd.Compression.fp16) == 65504.0  # the sum is in float32
        assert reduced(0.125 + 2 * rank + 0.01, Eighths) == 1.125


@fact
def process_set():
    assert gradient(1.0 + rank, process_set=PAIR) == 1.5


class Picky(Eighths):
    @classmethod
    def compress(cls, tensor):
        if rank and tensor.sum() > 9:
            raise ZeroDivisionError("too much")
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


def raised(function, *args):
    try:
        function(*args)
    except Exception as error:
        return type(error).__name__, str(error)


@fact
def a_compressor_that_raises():
    ddp = wrap(One(), Picky)
    for value in (1.0, 4.0, 2.0):
        ddp.zero_grad()
        error = raised(ddp(value).backward)
        if value == 4.0:
            theirs = "RemoteError", "rank 1: ZeroDivisionError: too much"
            assert error == (("ZeroDivisionError", "too much") if rank else theirs), error
        else:
            assert error is None and ddp.module.p.grad.tolist() == [value] * 3


@fact
def hooks_that_differ():
    ddp = wrap(Heads(), hvd.Compression.fp16 if rank else hvd.Compression.none, bucket_cap_mb=SMALL)
    for _ in range(2):  # the second time the buckets are others
        kind, text = raised(ddp(torch.ones(1, 7)).sum().backward)
        assert kind == "MismatchError" and "fp16" in text and "ddp." in text, text
    assert gradient(1.0 + rank) == 1.5


@fact
def unequal_numbers_of_batches():
    from torch.distributed.algorithms.join import Join

    ddp = wrap(One())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    with Join([ddp]):
        for _ in range(2 + rank):
            optimizer.zero_grad()
            ddp(1.0).backward()
            optimizer.step()
    # A rank that has no batch any more gives zeros.
    assert torch.equal(ddp.module.p, torch.full((3,), -1.5))


@fact
def no_sync():
    ddp = wrap(One())
    with ddp.no_sync():
        ddp(float(rank)).backward()
    assert torch.equal(ddp.module.p.grad, torch.full((3,), float(rank)))
    ddp(1.0).backward()
    assert torch.equal(ddp.module.p.grad, torch.full((3,), 1.5))


@fact
def waiting_counts():
    ddp = wrap(One())
    before = hvd.stats().exposed_seconds
    if rank:
        threading.Event().wait(0.3)
    ddp(1.0).backward()
    assert rank or hvd.stats().exposed_seconds - before > 0.2
"""
)


@pytest.mark.parametrize("options", ["gradients", "static_graph", "looking_for_unused"])
@pytest.mark.parametrize("np", [2, 4])
def test_gradients_are_those_of_one_process(holds: Holds, options: str, np: int) -> None:
    """In fp32, to 4 ulp a rank of the sum of the samples' absolute gradients: `test_training`."""
    holds(_JOINT, options, np)


def test_parameters_may_go_unused_on_one_rank_or_on_all(holds: Holds) -> None:
    holds(_RANKS, "unused")


def test_two_models_after_20_steps_are_those_of_one_process(holds: Holds) -> None:
    holds(_RANKS, "two_models")


def test_a_bucket_has_the_same_name_in_every_step(holds: Holds) -> None:
    holds(_RANKS, "stable_names")


def test_a_compression_is_what_travels(holds: Holds) -> None:
    holds(_RANKS, "compression")


def test_a_process_set_averages_by_itself(holds: Holds) -> None:
    holds(_RANKS, "process_set")


def test_what_a_compressor_raises_fails_the_step_on_every_rank(holds: Holds) -> None:
    holds(_RANKS, "a_compressor_that_raises")


def test_hooks_that_differ_fail_on_every_rank_with_the_error_that_says_so(holds: Holds) -> None:
    holds(_RANKS, "hooks_that_differ")


def test_joined_ranks_give_zeros(holds: Holds) -> None:
    holds(_RANKS, "unequal_numbers_of_batches")


def test_no_sync_leaves_gradients_local(holds: Holds) -> None:
    holds(_RANKS, "no_sync")


def test_the_wait_at_the_end_of_backward_is_seen_by_the_runtime(holds: Holds) -> None:
    holds(_RANKS, "waiting_counts")


_ENDS = """
    import os, signal, sys
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    import commrt.torch as hvd

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    hvd.init()
    rank = hvd.rank()
    dist.init_process_group("gloo")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))

        def forward(self, x, fault):
            if fault == "forward":
                raise ArithmeticError("in forward")
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            x.register_hook(self.fail if fault == "backward" else lambda grad: None)
            return self.layers(x).sum()

        def fail(self, grad):  # after the buckets are on their way
            raise ArithmeticError("in backward")

    ddp = DistributedDataParallel(Model(), bucket_cap_mb=0.001)
    ddp.register_comm_hook(None, hvd.ddp_hook())
    try:
        for step in range(5):
            fault = sys.argv[1] if rank == 1 and step == 3 else None
            ddp(torch.ones(1, 64, requires_grad=True), fault).backward()
    except hvd.CommError as error:
        print(type(error).__name__, error, flush=True)
        raise
    print("went on")
"""


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_rank_that_raises_leaves_nobody_waiting(where: str) -> None:
    result = run_ranks(_ENDS, 3, args=[where], timeout=60)
    assert result.status == 1, result.output
    assert f"ArithmeticError: in {where}" in result.stderr_of[1]
    assert "commrun: rank 1 on host" in result.report
    assert set(result.stdout_of) == {0, 2}
    for rank in (0, 2):
        assert result.stdout_of[rank].startswith("ShutdownError"), result.output
        assert f"ArithmeticError: in {where}" in result.stdout_of[rank], result.output


@pytest.mark.faults
def test_a_rank_that_is_killed_is_a_lost_peer_to_the_others() -> None:
    result = run_ranks(_ENDS, 3, args=["kill"], timeout=60)
    assert result.status == 128 + 9, result.output
    for rank in (0, 2):
        assert result.stdout_of[rank].startswith("PeerLostError lost rank 1"), result.output
