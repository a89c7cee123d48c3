"""Draws what `commrt bench bandwidth --json` has measured: time and bus bandwidth over size.

    python docs/plots/bandwidth.py TITLE OUT.svg JSON [JSON ...]

Several files are runs of the same setting against different peers. Needs commrt and matplotlib.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from commrt.config import show

_TIME = re.compile(r"time at (\d+) bytes")
_COLOURS = {"commrt": "#3f51b5", "gloo": "#e65100", "MPI": "#00796b"}

Curve = dict[int, tuple[float, float, float]]
"""Of each size: median, lowest and highest time in seconds."""


def read(paths: list[Path]) -> tuple[dict[str, Curve], int, str]:
    """Return a curve of each side, of MPI's two forms the faster; ranks; when and where."""
    curves: dict[str, Curve] = {}
    for path in paths:
        record: dict[str, Any] = json.loads(path.read_text())
        for series in record["series"]:
            size = _TIME.fullmatch(series["what"])
            if size is None or series["side"] == "copy":
                continue
            side = "MPI" if series["side"].startswith("MPI") else series["side"]
            found = (series["median"], series["low"], series["high"])
            curve = curves.setdefault(side, {})
            curve[int(size[1])] = min(found, curve.get(int(size[1]), found))
    machine = record["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, {record['date'][:10]}"
    return curves, record["ranks"], where


def draw(title: str, out: Path, paths: list[Path]) -> None:
    """Write the picture."""
    curves, ranks, where = read(paths)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for side, curve in sorted(curves.items(), key=lambda item: item[0] != "commrt"):
        sizes = sorted(curve)
        colour = _COLOURS[side]
        moved = [2 * (ranks - 1) / ranks * size / 1e9 for size in sizes]
        median, low, high = ([curve[size][i] for size in sizes] for i in range(3))
        left.plot(sizes, [t * 1e3 for t in median], "o-", label=side, color=colour, ms=4)
        left.fill_between(
            sizes, [t * 1e3 for t in low], [t * 1e3 for t in high], color=colour, alpha=0.15
        )
        right.plot(
            sizes, [n / t for n, t in zip(moved, median, strict=True)], "o-", label=side,
            color=colour, ms=4,
        )  # fmt: skip
    left.set(yscale="log", ylabel="time (ms), median and range of rounds")
    right.set(ylabel="bus bandwidth (GB/s)", ylim=(0, None))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        ticks = [size for size in sizes if size.bit_length() % 2 == sizes[0].bit_length() % 2]
        axes.set_xticks(ticks, [show(size, "bytes") for size in ticks])
        axes.set_xlabel("bytes of an allreduce, float32, in place")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"{title}\n", fontsize=12)
    figure.text(0.5, 0.925, where, ha="center", fontsize=8)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    plt.rcParams["svg.hashsalt"] = "commrt"
    draw(sys.argv[1], Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
