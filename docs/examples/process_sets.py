"""Ranks 0 and 2 add numbers among themselves.

commrun -np 3 python docs/examples/process_sets.py
"""

import numpy as np

import commrt

pair = commrt.ProcessSet([0, 2])
commrt.init(process_sets=[pair])  # the same list on all ranks

if commrt.rank() in pair.ranks:
    mine = np.array([float(commrt.rank())])
    print(commrt.allreduce(mine, op=commrt.Sum, process_set=pair))
