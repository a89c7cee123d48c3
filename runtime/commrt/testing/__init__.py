"""For tests of code that communicates: ranks as threads, time and networks under control.

Hypothesis strategies are in `commrt.testing.strategies`, which needs hypothesis.
"""

from __future__ import annotations

from commrt.testing.clock import FakeClock
from commrt.testing.network import Network
from commrt.testing.wire import MemorySwitch, MemoryWire
from commrt.testing.world import LocalWorld

__all__ = ["FakeClock", "LocalWorld", "MemorySwitch", "MemoryWire", "Network"]
