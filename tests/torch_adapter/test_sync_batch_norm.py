from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

import commrt.torch as hvd

Holds = Callable[..., None]


@pytest.mark.usefixtures("world")
def test_on_one_rank_it_is_batch_norm() -> None:
    x = torch.randn(4, 3, 2)
    ours, theirs = hvd.SyncBatchNorm(3), nn.BatchNorm1d(3)
    assert torch.equal(ours(x), theirs(x))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert torch.equal(ours.running_var, theirs.running_var)


def test_the_input_must_have_the_features() -> None:
    norm = hvd.SyncBatchNorm(3)
    for wrong in (torch.ones(3), torch.ones(2, 4), torch.ones(2, 3, dtype=torch.int64)):
        with pytest.raises(hvd.ArgumentError, match=r"\(N, 3, …\)"):
            norm(wrong)


def test_batch_norms_are_converted_with_their_parameters_and_buffers() -> None:
    plain = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3, eps=0.1)), nn.ReLU())
    bare = nn.BatchNorm2d(2, affine=False, momentum=None).eval()
    inner = plain[1][0]
    assert hvd.SyncBatchNorm.convert_sync_batchnorm(plain) is plain
    made = plain[1][0]
    assert type(made) is hvd.SyncBatchNorm and made.eps == 0.1
    assert made.weight is inner.weight and made.running_mean is inner.running_mean
    assert hvd.SyncBatchNorm.convert_sync_batchnorm(made) is made
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(bare)
    assert converted.weight is None and converted.momentum is None and not converted.training


@pytest.mark.usefixtures("world")
def test_it_is_copied_and_pickled_without_the_job_it_was_in() -> None:
    norm = hvd.SyncBatchNorm(3, process_set=hvd.global_process_set)
    for twin in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        assert twin.process_set is hvd.global_process_set
        assert torch.equal(twin.weight, norm.weight)


_JOINT = """
ROWS = {2: [3, 2], 3: [3, 0, 2], 4: [1, 1, 1, 1]}
SHAPES = [(), (4,), (2, 3), (2, 2, 2)]


def share(joint, rows=None):
    return joint.split(rows or ROWS[size])[rank]


def near(mine, reference):
    assert mine.dtype is reference.dtype and mine.shape == reference.shape
    assert mine.numel() == 0 or (mine - reference).abs().max() < 1e-12, (mine, reference)


def compare(shape, steps=2, rows=None, **options):
    plain = nn.modules.batchnorm._BatchNorm(3, dtype=torch.float64, **options)
    plain._check_input_dim = lambda x: None
    norm = hvd.SyncBatchNorm(3, dtype=torch.float64, **options)
    for module in (plain, norm):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.tensor([1.5, -0.5, 2.0]))
    for step in range(steps):
        torch.manual_seed(step)
        joint = (100 + 3 * torch.randn(sum(rows or ROWS[size]), 3, *shape).double())
        weights = torch.randn(joint.shape).double()
        joint.requires_grad_()
        mine = share(joint.detach(), rows).clone().requires_grad_()
        expected, got = plain(joint), norm(mine)
        near(got.detach(), share(expected.detach(), rows))
        (expected * weights).sum().backward()
        (got * share(weights, rows)).sum().backward()
        near(mine.grad, share(joint.grad, rows))
        for ours, theirs in zip(norm.buffers(), plain.buffers(), strict=True):
            near(ours, theirs)
    for ours, theirs in zip(norm.parameters(), plain.parameters(), strict=True):
        near(hvd.allreduce(ours.grad, op=hvd.Sum), theirs.grad)
    plain.eval(), norm.eval()
    near(norm(mine).detach(), share(plain(joint).detach(), rows))


@fact
def every_shape():
    for shape in SHAPES:
        compare(shape)


@fact
def every_option():
    compare((2,), momentum=None, steps=3)
    compare((2,), affine=False)
    compare((2,), track_running_stats=False)
    compare((2,), eps=0.5, momentum=0.7)
    compare((), rows=[0] * size)


@fact
def layouts():
    torch.manual_seed(rank)
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    norm = hvd.SyncBatchNorm(3)
    y = norm(x)
    y.square().sum().backward()
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert x.grad.is_contiguous(memory_format=torch.channels_last)
    joint = hvd.allgather(x.detach())
    assert torch.allclose(hvd.allgather(y.detach()), nn.BatchNorm2d(3)(joint), atol=1e-5)


@fact
def narrow_floats():
    for dtype in (torch.float16, torch.bfloat16):
        norm = hvd.SyncBatchNorm(3)
        x = (30 * torch.arange(6.0).reshape(2, 3) + rank).to(dtype).requires_grad_()
        y = norm(x)
        y.sum().backward()
        assert y.dtype is dtype and x.grad.dtype is dtype
        assert norm.weight.grad.dtype is torch.float32
        joint = hvd.allgather(x.detach()).float()
        expected = nn.BatchNorm1d(3)(joint).split([2] * size)[rank]
        assert torch.allclose(y.float(), expected, atol=0.01)


@fact
def without_a_graph():
    norm = hvd.SyncBatchNorm(3)
    x = torch.full((1, 3), float(rank))
    with torch.no_grad():
        y = norm(x)
    assert not y.requires_grad
    assert torch.allclose(norm.running_mean, torch.full((3,), 0.1 * (size - 1) / 2))
    assert torch.allclose(hvd.allreduce(y), torch.zeros(3), atol=1e-6)
    frozen = hvd.SyncBatchNorm(3).requires_grad_(False)
    assert not frozen(x).requires_grad
    weights_only = hvd.SyncBatchNorm(3)
    weights_only(x).sum().backward()
    assert torch.equal(weights_only.bias.grad, torch.ones(3))


@fact
def one_value():
    norm = hvd.SyncBatchNorm(3)
    try:
        norm(torch.ones(1 if rank == 0 else 0, 3))
    except ValueError as error:
        assert "more than 1 value" in str(error)
    else:
        raise AssertionError("no error")
    assert norm.num_batches_tracked == 0


@fact
def several_modules():
    first, second = hvd.SyncBatchNorm(3), hvd.SyncBatchNorm(5)
    if rank == 0:
        hvd.SyncBatchNorm(7)  # made, and never used
    twin = copy.deepcopy(first)
    names = {module._name() for module in (first, second, twin, copy.deepcopy(first))}
    assert len(names) == 4 and hvd.allgather_object(names) == [names] * size
    x = torch.randn(2, 3)
    for module in (first, second, twin):
        module(x if module is not second else torch.randn(2, 5)).sum().backward()
    part = hvd.SyncBatchNorm(3, process_set=PAIR)
    if rank in PAIR.ranks:
        part(x).sum().backward()
        assert same_everywhere_in_pair(part.running_mean)


def same_everywhere_in_pair(tensor):
    rows = hvd.allgather(tensor[None], process_set=PAIR)
    return torch.equal(rows[0], rows[1])


@fact
def compiled():
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(3, 3), hvd.SyncBatchNorm(3))
    x = torch.randn(2, 3)
    plain = copy.deepcopy(model)(x)
    assert torch.allclose(torch.compile(model, backend="eager")(x), plain)
"""


@pytest.mark.ranks
@pytest.mark.parametrize("np", [2, 3, 4])
@pytest.mark.parametrize("name", ["every_shape", "every_option"])
def test_forward_and_backward_are_those_of_the_joint_batch(
    holds: Holds, name: str, np: int
) -> None:
    holds(_JOINT, name, np)


@pytest.mark.ranks
def test_memory_format_is_kept(holds: Holds) -> None:
    holds(_JOINT, "layouts")


@pytest.mark.ranks
def test_16_bit_floats_are_normalized_in_32(holds: Holds) -> None:
    holds(_JOINT, "narrow_floats")


@pytest.mark.ranks
def test_nothing_is_recorded_where_no_gradient_is_wanted(holds: Holds) -> None:
    holds(_JOINT, "without_a_graph")


@pytest.mark.ranks
def test_one_value_in_all_is_an_error_on_every_rank(holds: Holds) -> None:
    holds(_JOINT, "one_value")


@pytest.mark.ranks
def test_modules_do_not_get_in_each_others_way(holds: Holds) -> None:
    holds(_JOINT, "several_modules")


@pytest.mark.ranks
def test_a_compiled_model_normalizes_alike(holds: Holds) -> None:
    holds(_JOINT, "compiled")
