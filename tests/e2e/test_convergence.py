"""Training on real data: ranks together learn what one process with all the data learns."""

from __future__ import annotations

import re

import pytest

from harness import ROOT, run_ranks

pytestmark = pytest.mark.converge

pytest.importorskip("torch")
pytest.importorskip("sklearn")


def test_the_demo_reaches_its_accuracy() -> None:
    result = run_ranks(ROOT / "docs/examples/train_digits.py", 2, timeout=110)
    assert result.status == 0
    accuracy = re.search(r"test accuracy: ([\d.]+)%", result.output)
    assert accuracy and float(accuracy[1]) >= 97.0


DIGITS = """
    import sys
    import torch
    from sklearn.datasets import load_digits
    import commrt.torch as hvd

    codec, seeds = sys.argv[1], (0, 1, 2)
    torch.set_num_threads(1)
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    digits = load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.float64)
    y = torch.tensor(digits.target)
    train, test = slice(0, 1440), slice(1440, None)
    # Sorted by label: each rank sees a few classes only, so a rank left alone cannot learn them.
    order = torch.argsort(y[train], stable=True)
    shards = order.chunk(size)

    def learn(wrap, batches, seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10)
        ).double()
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), model)
        for picked in batches(seed):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[picked]), y[picked]).backward()
            optimizer.step()
        accuracy = (model(x[test]).argmax(1) == y[test]).double().mean().item()
        return accuracy, torch.cat([p.detach().flatten() for p in model.parameters()])

    def picks(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(150):
            spots = [torch.randint(len(s), (32,), generator=generator) for s in shards]
            yield torch.stack([s[spot] for s, spot in zip(shards, spots)])

    def distributed(optimizer, model):
        return hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(),
            compression=getattr(hvd.Compression, codec),
        )

    for seed in seeds:
        got, ours = learn(distributed, lambda s: (p[rank] for p in picks(s)), seed)
        want, joint = learn(lambda o, _: o, lambda s: (p.flatten() for p in picks(s)), seed)
        lost, _ = learn(lambda o, _: o, lambda s: (p[rank] for p in picks(s)), seed)
        if codec == "none":
            assert torch.allclose(ours, joint, rtol=1e-10, atol=1e-12), (ours - joint).abs().max()
        assert got >= want - 0.005, (got, want)
        assert lost < want - 0.3, "the shards are too easy: one rank alone learns everything"
        assert all(torch.equal(ours, o) for o in hvd.allgather_object(ours)), "ranks differ"
    print("ok", flush=True)
"""


@pytest.mark.parametrize(("np", "codec"), [(2, "none"), (4, "none"), (2, "fp16"), (2, "bf16")])
def test_ranks_with_a_few_labels_each_learn_what_one_process_learns(np: int, codec: str) -> None:
    result = run_ranks(DIGITS, np, args=[codec], timeout=110)
    assert result.status == 0
    assert result.stdout_of == dict.fromkeys(range(np), "ok\n")
