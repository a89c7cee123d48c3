"""A rank dies in the middle of training; one of the others saves the model.

commrun -np 2 --grace 30 python docs/examples/save_on_failure.py checkpoint.pt
"""

import os
import signal
import sys

import torch

import commrt.torch as hvd


def save(path: str, state: object) -> None:
    """Write a file that is whole or not there."""
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(100, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
)

step = 0
try:
    while step < 50:
        if hvd.rank() == 1 and step == 20:
            os.kill(os.getpid(), signal.SIGKILL)  # the failure
        optimizer.zero_grad()
        model(torch.randn(8, 100)).pow(2).mean().backward()
        optimizer.step()
        step += 1
except hvd.PeerLostError as error:
    saver = min(set(range(hvd.size())) - set(error.ranks))
    if hvd.rank() == saver:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        save(sys.argv[1], state)
        print(f"saved after {step} steps: {error}")
    raise
