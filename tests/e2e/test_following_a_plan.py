"""Jobs that follow a plan instead of negotiating: what they say, and how they leave it."""

from __future__ import annotations

import pytest

from harness import run_ranks
from storm import SCRIPT as STORM

pytestmark = pytest.mark.ranks

_COUNT = """
    import torch, numpy as np
    import commrt
    from commrt.control.zmq_ import ZmqLink

    sent = []
    send = ZmqLink.send
    def counting(link, rank, data):
        sent.append(data)
        send(link, rank, data)
    ZmqLink.send = counting

    def follows():
        return not commrt.api.session().runtime.parts.member.negotiates()

    def silent(step, most=60, steps=20):
        for _ in range(50):  # buckets have their size then
            step()
        for _ in range(most):
            step()
            if follows():
                break
        assert follows(), "no plan"
        for _ in range(3):
            step()
        before = len(sent)
        for _ in range(steps):
            step()
        assert len(sent) == before, [commrt.core.wire.decode(d) for d in sent[before:][:4]]
"""

SILENT = {
    "arrays": """
        x = np.ones(5000, np.float32)
        commrt.init()
        def step():
            handles = [commrt.allreduce_async(x, name=f"g{i}", op=commrt.Sum) for i in range(9)]
            assert all(h.wait()[0] == commrt.size() for h in handles)
    """,
    "one call at a time": """
        x = np.ones(5000, np.float32)
        commrt.init()
        def step():
            assert commrt.allreduce(x, op=commrt.Sum)[0] == commrt.size()
            assert commrt.allgather(x).size == commrt.size() * 5000
    """,
    "training": """
        import commrt.torch as hvd
        hvd.init()
        model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Linear(40, 5))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), bucket=2000)
        def step():
            optimizer.zero_grad()
            model(torch.ones(3, 30)).sum().backward()
            optimizer.step()
            assert float(hvd.allreduce(torch.tensor(float(hvd.rank())))) == (hvd.size() - 1) / 2
    """,
    "accumulation": """
        import commrt.torch as hvd
        hvd.init()
        model = torch.nn.Linear(30, 40)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1),
                                             backward_passes_per_step=3)
        def step():
            optimizer.zero_grad()
            for _ in range(3):
                model(torch.ones(3, 30)).sum().backward()
            optimizer.step()
    """,
    "two networks": """
        import commrt.torch as hvd
        hvd.init()
        critic, generator = torch.nn.Linear(8, 1), torch.nn.Linear(4, 8)
        def wrap(model):
            return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01))
        ours, theirs = wrap(critic), wrap(generator)
        def step():
            for _ in range(2):
                ours.zero_grad()
                critic(generator(torch.ones(2, 4)).detach()).sum().backward()
                ours.step()
            theirs.zero_grad()
            ours.zero_grad()
            loss = critic(generator(torch.ones(2, 4))).sum()
            for p, g in zip(generator.parameters(),
                            torch.autograd.grad(loss, list(generator.parameters()))):
                p.grad = g
            theirs.step()
    """,
}


@pytest.mark.parametrize("what", SILENT)
def test_once_steps_are_alike_no_control_message_is_sent(what: str) -> None:
    script = _COUNT + SILENT[what].replace("\n    ", "\n") + "\n    silent(step)\n    print('ok')\n"
    result = run_ranks(script, 2)
    assert result.status == 0, result.output
    assert result.stdout_of == {0: "ok\n", 1: "ok\n"}, result.output


@pytest.mark.parametrize(
    ("np", "transport"), [(2, "shm"), (3, "shm"), (2, "tcp"), (3, "tcp"), (3, "mpi")]
)
def test_whatever_ranks_do_otherwise_values_are_right(np: int, transport: str) -> None:
    result = run_ranks(STORM, np, args=["120"], env={"COMMRT_TRANSPORT": transport}, timeout=110)
    assert result.status == 0, result.output
    words = result.stdout_of[0].split()
    assert words[0] == "ok", result.output
    assert int(words[1]) >= 4, "hardly a plan was made"
    assert [result.stdout_of[rank] for rank in range(1, np)] == ["ok\n"] * (np - 1)


def test_settings_can_keep_ranks_negotiating() -> None:
    script = _COUNT + SILENT["arrays"].replace("\n    ", "\n")
    script += "\n    for _ in range(20): step()\n    assert not follows()\n    print('ok')\n"
    result = run_ranks(script, 2, env={"COMMRT_LOCK": "0"})
    assert result.stdout_of == {0: "ok\n", 1: "ok\n"}, result.output
