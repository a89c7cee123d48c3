"""Collectives on numpy arrays.

commrun -np 2 python docs/examples/numpy_arrays.py
"""

import numpy as np

import commrt

commrt.init()
rank, size = commrt.rank(), commrt.size()

x = np.full(3, rank, np.float32)
mean = commrt.allreduce(x)  # a new array
total = commrt.allreduce(x, op=commrt.Sum)
commrt.allreduce_(x, op=commrt.Sum)  # in place
rows = commrt.allgather(np.full((rank + 1, 2), rank))  # first dimensions may differ
last = commrt.broadcast(np.array([rank]), root_rank=size - 1)
everyone = commrt.allgather_object({"rank": rank})

# Several operations at once: names tell them apart, whatever the order on each rank.
layers = [np.full(1000, i, np.float32) for i in range(5)]
handles = [commrt.allreduce_async_(a, name=f"layer.{i}") for i, a in enumerate(layers)]
for handle in handles:
    handle.wait()

if rank == 0:
    print("mean", mean, "total", total, "in place", x)
    print("rows", rows.shape, "last", last, "everyone", everyone)
    print("layers", [float(layer[0]) for layer in layers])
