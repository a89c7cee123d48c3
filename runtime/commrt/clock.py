"""Time as a value: cores get it as an argument, the engine reads it here."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds on a clock that never goes back."""

monotonic: Clock = time.monotonic
