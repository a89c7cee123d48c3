"""A job whose steps are alike but for what its ranks do otherwise now and then, against numpy."""

from __future__ import annotations

SCRIPT = """
import sys, time
import numpy as np
import commrt

commrt.init()
rank, size, steps = commrt.rank(), commrt.size(), int(sys.argv[1])
pair = commrt.add_process_set([0, size - 1]) if size > 2 else None
SHAPES = {"a": (64,), "b": (1300,), "c": (300_001,), "d": (800_000,), "h": (5000,), "m": ()}
arena = {name: commrt.zeros(SHAPES[name]) for name in ("c", "d")}

def values(name, step, shape, r):
    dtype = np.float16 if name == "h" else np.float32
    seed = [ord(name[0]), step % 7, r]
    return np.asarray(np.random.default_rng(seed).integers(0, 9, shape)).astype(dtype)

def wanted(name, step, shape, where):
    ranks = range(size) if where is None else where.ranks
    return sum(values(name, step, shape, r) for r in ranks)

def submit(name, step, shape, where=None):
    x = values(name, step, shape, rank)
    title = None if name == "m" else name
    if name in arena and shape == SHAPES[name]:
        arena[name][...] = x
        return commrt.allreduce_async_(arena[name], name=title, op=commrt.Sum, process_set=where)
    return commrt.allreduce_async(x, name=title, op=commrt.Sum, process_set=where)

def check(handle, name, step, shape, where=None):
    found = handle.wait(60)
    assert np.array_equal(found, wanted(name, step, shape, where)), (name, step)
    if isinstance(found, np.ndarray) and found.ndim:
        found[...] = -1  # nobody may still read it

for step in range(steps):
    common = np.random.default_rng(step)
    own = np.random.default_rng([step, rank])
    event = common.choice(["extra", "without", "shape", "copy", "permuted", "wait first", "poll",
                           "mismatch", "blocking", "late"]) if common.random() < 0.15 else "steady"
    beats = [(name, SHAPES[name], None) for name in "abcdhm"]
    if pair is not None and rank in pair.ranks:
        beats.insert(2, ("p", (777,), pair))
    odd = int(common.integers(size))
    if event == "extra":
        beats.insert(int(own.integers(len(beats))), ("x", (100,), None))
    elif event == "without":
        beats = [beat for beat in beats if beat[0] != "b"]
    elif event == "shape":
        beats = [(n, (77,), w) if n == "a" else (n, s, w) for n, s, w in beats]
    elif event == "copy":
        assert commrt.broadcast(np.array([step]), 0)[0] == step
        commrt.barrier()
    elif event == "permuted":
        named = [beat for beat in beats if beat[0] != "m"]
        beats = [named[i] for i in own.permutation(len(named))] + beats[-1:]
    elif event == "mismatch":
        try:
            commrt.allreduce(np.zeros(3 + (rank == odd)), name="x")
        except commrt.MismatchError:
            pass
        else:
            assert size == 1
    elif event == "late" and rank == odd:
        sum(i * i for i in range(200_000))
    if event == "blocking":
        for beat in beats:
            check(submit(beat[0], step, *beat[1:]), beat[0], step, *beat[1:])
        continue
    handles = {}
    if event in ("wait first", "poll") and rank == odd:  # the others submit in the usual order
        name, shape, where = beats[1]
        handle = submit(name, step, shape, where)
        while event == "poll" and not handle.done():
            time.sleep(0.002)
        check(handle, name, step, shape, where)
        del beats[1]
    for beat in beats:
        handles[beat[0]] = submit(beat[0], step, *beat[1:])
    order = own.permutation(len(beats)) if own.random() < 0.5 else range(len(beats))
    for i in order:
        check(handles[beats[i][0]], beats[i][0], step, *beats[i][1:])
plans = 0
if rank == 0:
    plans = commrt.api.session().runtime.parts.coordinator._lease._epoch // 2
commrt.shutdown()
print("ok" if rank else f"ok {plans}", flush=True)
"""
