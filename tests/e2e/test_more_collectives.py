"""Reductions beside sums, rows that change their rank, joins and sets made later: real ranks."""

from __future__ import annotations

import pytest

from harness import run_ranks

pytestmark = pytest.mark.ranks

SCRIPT = """
    import threading
    import numpy as np
    import pytest
    import commrt
    from commrt import Average, Max, Min, MismatchError, ProcessSet, Product, Sum

    commrt.init()
    r, n = commrt.rank(), commrt.size()
    assert n == 4 and commrt.is_homogeneous()

    def inputs(shape, dtype):
        return [np.random.default_rng(k).integers(1, 4, shape).astype(dtype) for k in range(n)]

    # Sizes around the switch from doubling to the ring, and of several segments.
    for count in (0, 1, 3, 16_383, 16_384, 16_385, 1_500_001):
        given = inputs(count, np.float32)
        for op, fold in ((Min, np.minimum), (Max, np.maximum), (Product, np.multiply)):
            expected = fold.reduce(given)
            assert np.array_equal(commrt.allreduce(given[r], op=op), expected)
            rows = np.array_split(expected, n)[r]
            assert np.array_equal(commrt.reducescatter(given[r], op=op), rows)
    for dtype in (np.int8, np.uint8, np.int16, np.int32, np.int64):
        info = np.iinfo(dtype)
        values = np.array([info.max, info.min, 7, 5 if r else 0], dtype)
        mean = [info.max, info.min, 7, 15 // 4]
        assert commrt.allreduce(values).tolist() == mean, dtype
        assert commrt.reducescatter(values).tolist() == [mean[r]]
    waves = np.array([1 + 2j, 1j]) * (r + 1)
    assert commrt.allreduce(waves).tolist() == [2.5 + 5j, 2.5j]
    assert commrt.allreduce(waves, op=Product)[1] == 24  # i to the fourth is one

    splits = np.arange(n) + r
    sent = np.concatenate([np.full((k, 3), 10 * r + q, np.int16) for q, k in enumerate(splits)])
    got, received = commrt.alltoall(sent, splits)
    assert received.tolist() == [r + q for q in range(n)]
    assert np.array_equal(got, np.repeat(10 * np.arange(n) + r, received)[:, None].repeat(3, 1))
    assert commrt.alltoall(np.full(n, r)).tolist() == list(range(n))
    big = commrt.alltoall(np.full((n * 300_000,), r, np.float32))
    assert np.array_equal(big, np.repeat(np.arange(n, dtype=np.float32), 300_000))

    floats, ints = commrt.grouped_allreduce([np.full(5, r, np.float32), np.full((2, 2), r)], op=Sum)
    assert (floats == 6).all() and (ints == 6).all() and ints.dtype == np.int64
    gathered = commrt.grouped_allgather([np.full(r, r), np.array([[r]])])
    assert gathered[0].tolist() == [1, 2, 2, 3, 3, 3]
    assert gathered[1].tolist() == [[0], [1], [2], [3]]
    many = commrt.grouped_allgather([np.array([r * i]) for i in range(300)])
    assert [array.tolist() for array in many] == [[i * q for q in range(n)] for i in range(300)]
    with pytest.raises(MismatchError, match="shape"):  # an error in one member is all members'
        commrt.grouped_allreduce([np.ones(3), np.ones(3 + (r == 2))], name="group")

    # Sets made on the way, overlapping, used in another order on every rank.
    sets = [commrt.add_process_set([k, (k + 1) % n]) for k in range(n)]
    mine = [s for s in sets if s.included()]
    handles = {s.ranks: commrt.allreduce_async(np.ones(3), op=Sum, process_set=s)
               for s in (mine if r % 2 else mine[::-1])}
    assert all(h.wait().tolist() == [2, 2, 2] for h in handles.values())
    first = sets[0]
    if first.included():
        with pytest.raises(commrt.ArgumentError, match="root rank 3 is not in the process set"):
            commrt.broadcast(np.ones(1), root_rank=3, process_set=first)
        assert commrt.broadcast(np.full(2, r), 1, process_set=first).tolist() == [1, 1]
        assert first.rank() == r and first.size() == 2
    alone = commrt.add_process_set([2])
    if r == 2:
        assert commrt.allreduce(np.array([7]), process_set=alone).tolist() == [7]
    for s in (*sets, alone):
        assert commrt.remove_process_set(s)

    # Uneven data: rank k has k steps; averages count all ranks, unnamed operations go on after.
    for _ in range(2):
        for step in range(r):
            active = n - 1 - step
            assert commrt.allreduce(np.full(3, 4.0)).tolist() == [float(active)] * 3
            top = commrt.allreduce(np.full(70_000, -1.0 - r), name=f"top{step}", op=Max)
            assert (top == -2.0 - step).all()
        last = commrt.join()
        assert commrt.allgather(np.array([last])).tolist() == [last] * n
        assert commrt.allreduce(np.array([r]), op=Sum).tolist() == [6]

    results = {}
    def work(name):
        results[name] = [commrt.alltoall(np.full(n, r), name=f"{name}.{k}").tolist()
                         for k in range(10)]
    threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert all(found == [list(range(n))] * 10 for found in results.values()) and len(results) == 3

    assert commrt.broadcast_object(None if r else {"only": "rank 0"}) == {"only": "rank 0"}
    assert commrt.allgather_object(None if r % 2 else r) == [0, None, 2, None]
    handle = commrt.allreduce_async(np.ones(2))
    commrt.synchronize(handle)
    with pytest.raises(commrt.ArgumentError, match="synchronized before"):
        commrt.synchronize(handle)
    for k in range(200):
        commrt.allreduce_async(np.ones(2), name=f"never waited for {k}")
    commrt.barrier()
    print("ok", flush=True)
"""


def test_the_rest_of_the_collectives_agree_with_numpy_on_four_ranks() -> None:
    result = run_ranks(SCRIPT, 4, timeout=110)
    assert result.status == 0, result.output
    assert [result.stdout_of[r] for r in range(4)] == ["ok\n"] * 4
