"""What notices that ranks have drifted apart, and what keeps buffers together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from commrt.torch.buffers import average_buffers
from commrt.torch.digests import digest
from commrt.torch.guards import check_replicas
from harness import run_ranks

Holds = Callable[..., None]


def test_a_digest_tells_values_dtypes_and_shapes_apart() -> None:
    x = torch.arange(6.0)
    others = [
        x.view(2, 3), x.double(), x + 1, x.flip(0), x.bfloat16(), torch.zeros(0), torch.zeros(()),
    ]  # fmt: skip
    assert len({digest(t) for t in (x, *others)}) == 8
    assert digest(x) == digest(x.clone())


def test_a_digest_is_of_the_values_not_of_the_layout_in_memory() -> None:
    conv = torch.randn(4, 3, 2, 2)
    assert digest(conv[:, ::2]) == digest(conv[:, ::2].contiguous())


@pytest.mark.usefixtures("world")
def test_one_rank_is_like_itself() -> None:
    check_replicas(nn.Linear(2, 2))
    average_buffers(nn.BatchNorm1d(3))


_GUARDS = """
from commrt.torch.buffers import average_buffers
from commrt.torch.guards import check_replicas


def difference(params, **options):
    try:
        check_replicas(params, **options)
    except hvd.MismatchError as error:
        return str(error)


@fact
def replicas():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    model[1].running_mean += rank  # buffers may differ
    forms = [
        model, dict(model.named_parameters()), list(model.named_parameters()),
        list(model.parameters()),
    ]
    assert [difference(form) for form in forms] == [None] * 4
    if rank == 1:
        with torch.no_grad():
            model[2].weight[0, 1] += 1e-6
            model[2].bias += 1
    names = ["2.weight"] * 3 + ["4"]
    said = [difference(form) for form in forms]
    for text, name in zip(said, names):
        assert f"parameter '{name}' differs" in text, text
        assert "rank 1" in text and ("rank 0" in text or "ranks 0, 2, 3" in text), text
    assert all(texts == said for texts in hvd.allgather_object(said))
    if rank < 2:
        assert "rank 0 against rank 1" in difference(model, process_set=PAIR)


@fact
def buffers():
    norm = nn.BatchNorm1d(3)
    norm.running_mean += torch.tensor([1.0, 2.0, 3.0]) * rank
    norm.num_batches_tracked += rank + 3
    average_buffers(norm)
    assert torch.allclose(norm.running_mean, torch.tensor([1.0, 2.0, 3.0]) * (size - 1) / 2)
    assert norm.num_batches_tracked == 3 and norm.num_batches_tracked.dtype is torch.int64


@fact
def buffers_after_each_step():
    norm = nn.BatchNorm1d(3)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(norm.parameters(), lr=0.1), broadcast_buffers=norm
    )
    for _ in range(2):
        norm(torch.randn(4, 3, generator=torch.Generator().manual_seed(rank))).sum().backward()
        optimizer.step()
        assert same_everywhere(*norm.buffers())
"""


@pytest.mark.ranks
@pytest.mark.parametrize("np", [2, 4])
@pytest.mark.parametrize("fact", ["replicas", "buffers", "buffers_after_each_step"])
def test_ranks_that_drift_apart_are_named_and_buffers_kept_together(
    holds: Holds, fact: str, np: int
) -> None:
    holds(_GUARDS, fact, np)


_CHECKED = """
    import torch
    from torch import nn
    import commrt.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    rank = hvd.rank()
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    for step in range(1, 7):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        if step == 4 and rank == 1:
            with torch.no_grad():
                model.bias += 1
        try:
            optimizer.step()
        except hvd.MismatchError as error:
            assert "'bias' differs: rank 0 against rank 1" in str(error), error
            print(step, flush=True)
"""


@pytest.mark.ranks
def test_parameters_are_compared_every_n_steps() -> None:
    result = run_ranks(_CHECKED, 2, env={"COMMRT_CHECK_EVERY": "3"})
    assert (result.status, result.stdout_of) == (0, {0: "6\n", 1: "6\n"})
    result = run_ranks(_CHECKED, 2)
    assert (result.status, result.stdout_of) == (0, {})


_FORGOTTEN = """
    import sys
    import torch
    from torch import nn
    import commrt.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(hvd.rank() if sys.argv[1] == "forgotten" else 0)
    model = nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
"""


@pytest.mark.ranks
def test_a_forgotten_broadcast_is_warned_of_once() -> None:
    output = run_ranks(_FORGOTTEN, 2, args=["forgotten"]).output
    assert output.count("the ranks begin with different parameters") == 1
    assert "'weight' differs: rank 0 against rank 1" in output
    assert "broadcast_parameters()" in output
    assert "different parameters" not in run_ranks(_FORGOTTEN, 2, args=["no"]).output
