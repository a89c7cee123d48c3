"""What an engine is made of."""

from __future__ import annotations

from dataclasses import dataclass

from commrt.clock import Clock
from commrt.control.base import ControlLink
from commrt.control.launcher import LauncherLine
from commrt.core.coordinator import Coordinator
from commrt.core.member import Member
from commrt.engine.departure import Departure
from commrt.engine.executor import Executor
from commrt.engine.heart import Heart
from commrt.engine.queue import TensorQueue
from commrt.observe.trace import Trace
from commrt.types import Topology


@dataclass(frozen=True, slots=True)
class Parts:
    """One rank's engine, wired. `coordinator` is None on all ranks but 0.

    `moved_by`: what moves data and why, for people.
    """

    topology: Topology
    generation: int
    link: ControlLink
    launcher: LauncherLine
    member: Member
    coordinator: Coordinator | None
    queue: TensorQueue
    executor: Executor
    heart: Heart
    trace: Trace
    departure: Departure
    clock: Clock
    moved_by: str
