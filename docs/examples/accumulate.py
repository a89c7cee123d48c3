"""Two backward passes for each step, and clipping.

commrun -np 2 python docs/examples/accumulate.py
"""

import torch

import commrt.torch as hvd

PASSES = 2

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1),
    named_parameters=model.named_parameters(),
    backward_passes_per_step=PASSES,
)

for _ in range(3):
    optimizer.zero_grad()
    for _ in range(PASSES):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        (loss / PASSES).backward()  # passes are added up: divide for their mean
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # of the averages
    optimizer.step()

weights = hvd.allgather_object(model.weight.tolist())
if hvd.rank() == 0:
    print("all ranks have the same weights:", all(w == weights[0] for w in weights))
