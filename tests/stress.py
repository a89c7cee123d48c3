"""A job of random operations of all sizes around every switch point, compared with numpy."""

from __future__ import annotations

SCRIPT = """
import sys
import numpy as np
import commrt

commrt.init()
rank, size = commrt.rank(), commrt.size()
most = int(sys.argv[1])
pairs = [commrt.add_process_set([r, (r + 1) % size]) for r in range(size if size > 2 else 0)]
edges = [0, 64, 65536 // size, 4 * 65536 // size, 65536, 262144, 4 * 262144, 5 * 262144]
edges += [n for n in (size << 20, 4 << 20, 8 << 20) if n <= most]
JOIN = {commrt.Sum: np.add, commrt.Min: np.minimum, commrt.Max: np.maximum,
        commrt.Product: np.multiply, commrt.Average: None}
for case in range(150):
    rng = np.random.default_rng(case)
    dtype = np.dtype(rng.choice(["float32", "float64", "int32", "int8", "float16", "complex64"]))
    op = list(JOIN)[rng.integers(5)]
    if dtype.kind == "c" and op in (commrt.Min, commrt.Max):
        op = commrt.Sum
    n = max(0, int(rng.choice(edges)) // dtype.itemsize + int(rng.integers(-1, 2)))
    where = pairs[rng.integers(size)] if pairs and rng.random() < 0.2 else None
    members = range(size) if where is None else where.ranks
    if op is commrt.Product:
        values = [rng.integers(1, 3, n).astype(dtype) for _ in range(size)]
    else:
        values = [rng.integers(-9, 10, n).astype(dtype) for _ in range(size)]
    own = np.random.default_rng(1000 * rank + case)  # ranks may differ in this
    ours = commrt.zeros(n, dtype) if own.random() < 0.4 else np.empty(n, dtype)
    ours[:] = values[rank]
    if rank not in members:
        continue
    if case % 2:
        found = commrt.allreduce_(ours, name=f"case {case}", op=op, process_set=where)
        assert found is ours
    else:
        found = commrt.allreduce(ours, name=f"case {case}", op=op, process_set=where)
        assert np.array_equal(ours, values[rank])
    chosen = [values[r] for r in members]
    if op is commrt.Average:
        total = sum(v.astype(np.promote_types(dtype, np.float64)) for v in chosen)
        wanted = total / len(chosen)
        wanted = np.trunc(wanted).astype(dtype) if dtype.kind == "i" else wanted
    else:
        wanted = chosen[0]
        for other in chosen[1:]:
            wanted = JOIN[op](wanted, other)
    rtol = 2e-3 if dtype == np.float16 else 1e-6
    close = np.allclose(found, wanted, rtol=rtol)
    assert close, (case, dtype, op, n, where)
    copies = commrt.allgather(found.view(np.uint8)[: 1 << 16], process_set=where)
    assert len(set(part.tobytes() for part in np.split(copies, len(chosen)))) == 1
print("ok")
"""
