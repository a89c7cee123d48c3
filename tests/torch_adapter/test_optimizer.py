from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from torch import nn

import commrt.torch as hvd
from commrt.torch.fleet import Fleet
from commrt.torch.hooks import Reducer

pytestmark = pytest.mark.usefixtures("world")


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()


def test_it_is_an_optimizer_and_shows_the_wrapped_one() -> None:
    model = nn.Linear(2, 2)
    bare = _sgd(model)
    optimizer = hvd.DistributedOptimizer(bare, model.named_parameters())
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is bare.param_groups
    assert optimizer.state is bare.state
    assert optimizer.defaults is bare.defaults
    optimizer.param_groups = [{"params": [], "lr": 1}]
    assert bare.param_groups == [{"params": [], "lr": 1}]
    assert "SGD" in repr(optimizer)
    with pytest.raises(AttributeError, match="nothing_such"):
        optimizer.nothing_such  # noqa: B018


@pytest.mark.parametrize(
    ("bucket", "numbers"),
    [
        (None, [2]),
        ("auto", [2]),
        ("formula", [2]),
        (0, [1, 1]),
        (4, [1, 1]),
        ("1KiB", [2]),
        ("0", [1, 1]),
    ],
)
def test_buckets_are_as_large_as_they_are_asked_for(
    bucket: int | str | None, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fleet, "alone", lambda self: False)
    model = nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(_sgd(model), bucket=bucket)
    _step(model, optimizer)
    assert isinstance(optimizer._reducer, Reducer)
    plan = optimizer._reducer._fleet.plan
    assert plan is not None
    assert [len(b.members) for b in plan.buckets] == numbers


@pytest.mark.parametrize("bucket", ["large", -1, 2.5, True, ""])
def test_another_bucket_is_refused(bucket: object) -> None:
    with pytest.raises(
        hvd.ArgumentError, match="bucket must be a size in bytes, 'auto' or 'formula'"
    ):
        hvd.DistributedOptimizer(_sgd(nn.Linear(2, 2)), bucket=bucket)  # type: ignore[arg-type]


def test_its_state_is_the_wrapped_ones() -> None:
    model = nn.Linear(2, 2)
    bare = _sgd(model)
    optimizer = hvd.DistributedOptimizer(bare)
    _step(model, optimizer)
    state = optimizer.state_dict()
    assert state["param_groups"] == bare.state_dict()["param_groups"]
    assert len(state["state"]) == 2
    other = hvd.DistributedOptimizer(_sgd(nn.Linear(2, 2)))
    other.load_state_dict(state)
    assert len(other.state) == 2


def test_state_from_before_the_wrapping_is_kept() -> None:
    model = nn.Linear(2, 2)
    bare = _sgd(model)
    _step(model, bare)
    momenta = [bare.state[param]["momentum_buffer"] for param in model.parameters()]
    optimizer = hvd.DistributedOptimizer(bare)
    kept = [optimizer.state[param]["momentum_buffer"] for param in model.parameters()]
    assert all(mine is old for mine, old in zip(kept, momenta, strict=True))


def test_one_rank_steps_as_without_a_wrapper() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    twin = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(_sgd(model), backward_passes_per_step=3)
    bare = _sgd(twin)
    for _ in range(3):
        _step(model, optimizer)
        _step(twin, bare)
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        _step(model, optimizer)
    _step(twin, bare)
    for mine, its in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_schedulers_built_before_and_after_the_wrapping_work() -> None:
    model = nn.Linear(2, 2)
    bare = _sgd(model)
    before = torch.optim.lr_scheduler.StepLR(bare, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(bare)
    after = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    _step(model, optimizer)
    before.step()
    after.step()
    assert bare.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5 * 0.1)


def test_a_one_cycle_scheduler_works() -> None:
    for wrap_first in (True, False):
        model = nn.Linear(2, 2)
        bare = _sgd(model)
        optimizer = hvd.DistributedOptimizer(bare)
        target = optimizer if wrap_first else bare
        scheduler = torch.optim.lr_scheduler.OneCycleLR(target, max_lr=1.0, total_steps=10)
        rates = []
        for _ in range(9):
            _step(model, optimizer)
            scheduler.step()
            rates.append(bare.param_groups[0]["lr"])
        assert max(rates) == pytest.approx(1.0, rel=0.1)
        assert rates[-1] < rates[0]


def test_step_hooks_set_on_the_wrapper_are_called() -> None:
    model = nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(_sgd(model))
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    _step(model, optimizer)
    assert seen == ["before", "after"]


def test_a_closure_gives_the_loss() -> None:
    model = nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(_sgd(model))

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        return float(loss.detach())

    first = closure()
    assert optimizer.step(closure) == first
    assert closure() < first


def test_names_must_be_unique_pairs_that_cover_the_parameters() -> None:
    model = nn.Linear(2, 2)
    names = list(model.named_parameters())
    for wrong, match in (
        (names[:1], "names 1 of the optimizer's 2"),
        ([("x", param) for _, param in names], "given twice: x"),
        ([param for _, param in names], "pairs"),
    ):
        with pytest.raises(ValueError, match=match):
            hvd.DistributedOptimizer(_sgd(model), wrong)
    frozen = nn.Linear(2, 2)
    frozen.bias.requires_grad_(False)
    hvd.DistributedOptimizer(_sgd(frozen), [("weight", frozen.weight)])


def test_a_parameter_has_one_living_wrapper() -> None:
    model = nn.Linear(2, 2)
    first = hvd.DistributedOptimizer(_sgd(model))
    with pytest.raises(hvd.ArgumentError, match=r"in DistributedOptimizer \d+ already"):
        hvd.DistributedOptimizer(torch.optim.SGD([model.bias], lr=1))
    with pytest.raises(hvd.ArgumentError, match=r"in DistributedOptimizer \d+ already"):
        hvd.DistributedOptimizer(first)
    del first
    gc.collect()
    hvd.DistributedOptimizer(_sgd(model))


def test_what_cannot_be_served_is_refused() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(hvd.ArgumentError, match="LBFGS"):
        hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters()))
    with pytest.raises(hvd.ArgumentError, match="needed, not Linear"):
        hvd.DistributedOptimizer(model)  # type: ignore[arg-type]
    with pytest.raises(hvd.ArgumentError, match="op must be"):
        hvd.DistributedOptimizer(_sgd(model), op="Adasum")  # type: ignore[arg-type]
    with pytest.raises(hvd.ArgumentError, match="needs op=Average"):
        hvd.DistributedOptimizer(_sgd(model), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(hvd.ArgumentError, match="must be positive"):
        hvd.DistributedOptimizer(_sgd(model), gradient_predivide_factor=0.0)
    with pytest.raises(hvd.ArgumentError, match="1 or more"):
        hvd.DistributedOptimizer(_sgd(model), backward_passes_per_step=0)
    with pytest.raises(hvd.InitError, match="is not registered"):
        hvd.DistributedOptimizer(_sgd(model), process_set=hvd.ProcessSet([0]))


def test_a_copy_wraps_a_copy() -> None:
    for twin in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))):
        model = nn.Linear(2, 2)
        optimizer = hvd.DistributedOptimizer(_sgd(model), model.named_parameters())
        _step(model, optimizer)
        other_model, other = twin((model, optimizer))
        assert isinstance(other, hvd.DistributedOptimizer)
        assert other.param_groups[0]["params"][0] is other_model.weight
        assert len(other.state) == 2
        _step(model, optimizer)
        _step(other_model, other)
        assert torch.equal(model.weight, other_model.weight)
        assert model.weight is not other_model.weight


def test_a_shallow_copy_would_share_parameters_and_is_refused() -> None:
    optimizer = hvd.DistributedOptimizer(_sgd(nn.Linear(2, 2)))
    with pytest.raises(hvd.ArgumentError, match=r"in DistributedOptimizer \d+ already"):
        copy.copy(optimizer)


def test_state_goes_to_a_bare_optimizer_and_back() -> None:
    model = nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(_sgd(model))
    _step(model, optimizer)
    bare = _sgd(copy.deepcopy(model))
    bare.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
    optimizer.load_state_dict(bare.state_dict())
    momenta = [s["momentum_buffer"] for s in optimizer.state.values()]
    assert all(map(torch.equal, momenta, (s["momentum_buffer"] for s in bare.state.values())))


def test_it_may_be_wrapped_before_init_and_outlive_the_runtime() -> None:
    hvd.shutdown()
    model = nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(_sgd(model))
    for _ in range(2):
        with pytest.raises(hvd.InitError, match="call init"):
            _step(model, optimizer)
        hvd.init()
        before = model.weight.detach().clone()
        _step(model, optimizer)
        assert not torch.equal(model.weight, before)
        hvd.shutdown()
    hvd.init()


def test_groups_are_checked() -> None:
    model = nn.Linear(2, 2)
    for wrong, match in (
        (-1, "0 or more"),
        ("two", "lists of parameters"),
        ([model.weight], "lists of parameters"),
        ([[1.0]], "lists of parameters"),
        ([[model.weight], [model.weight]], "in two groups"),
        ([[torch.ones(1)]], "1 tensors that the optimizer has not"),
    ):
        with pytest.raises(hvd.ArgumentError, match=match):
            hvd.DistributedOptimizer(_sgd(model), groups=wrong)  # type: ignore[arg-type]
    with pytest.warns(DeprecationWarning, match="called groups now"):
        hvd.DistributedOptimizer(_sgd(model), num_groups=2)


def test_the_model_can_still_be_copied_and_saved() -> None:
    model = nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(_sgd(model))
    _step(model, optimizer)
    assert torch.equal(copy.deepcopy(model).weight, model.weight)
    assert torch.equal(pickle.loads(pickle.dumps(model)).weight, model.weight)
