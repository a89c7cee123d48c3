"""Who ended how, who failed first by cause, and what exit status follows. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

_CONSEQUENCES = ("PeerLostError", "ShutdownError")
_HEADER = "Traceback (most recent call last):"
_NOT_RAISED = "Exception ignored"
_EXCEPTION = re.compile(r"(?:\w+\.)*(\w+)(?::|$)")
_OF_TORCH = re.compile(r"^\[rank\d+\]: ")
"""torch.distributed puts it before each line of a traceback."""
_LIKELY = re.compile(r"\w*(?:Error|Exception|Interrupt|Exit)")


def signal_text(signum: int) -> str:
    """Return such as `signal 9 (SIGKILL)`."""
    try:
        return f"signal {signum} ({signal.Signals(signum).name})"
    except ValueError:
        return f"signal {signum}"


def final_exception(lines: Sequence[str]) -> str:
    """Return the class of the exception that error output ends with, without its module, or ''."""
    lines = [_OF_TORCH.sub("", line) for line in lines]
    starts = [
        i
        for i, line in enumerate(lines)
        if line.endswith(_HEADER) and not (i and lines[i - 1].startswith(_NOT_RAISED))
    ]
    if starts:
        flush_left = (line for line in lines[starts[-1] + 1 :] if not line.startswith((" ", "\t")))
        match = _EXCEPTION.match(next(flush_left, ""))
        return match[1] if match else ""
    names = [match[1] for line in lines if (match := _EXCEPTION.match(line))]
    return next((name for name in reversed(names) if _LIKELY.fullmatch(name)), "")


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of one rank's command.

    `code` is its exit status, minus the signal, or None if its shim was lost with it. `seconds`
    count from the start. `stopped`: commrun, mpirun or a forwarded signal ended it.
    """

    rank: int
    host: str
    code: int | None
    seconds: float
    tail: tuple[str, ...] = ()
    consequence: str = ""
    stopped: bool = False

    @property
    def failed(self) -> bool:
        """An exit status of 0 is the only success."""
        return self.code != 0

    @property
    def because_of_another(self) -> bool:
        """The runtime said so, or its error output does."""
        return bool(self.consequence) or final_exception(self.tail) in _CONSEQUENCES

    @property
    def status(self) -> int:
        """What a shell would say."""
        if self.code is None:
            return 1
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def how(self) -> str:
        """What the other ranks are told."""
        if self.code is None:
            return "lost, and its shim with it"
        if self.code < 0:
            return f"killed by {signal_text(-self.code)}"
        return f"exit status {self.code}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a job: `cause` failed first, None if nobody did or `signum` ended the job."""

    status: int
    cause: Ended | None = None
    signum: int = 0


def judge(ends: Sequence[Ended], signum: int = 0) -> Verdict:
    """Decide, from all ends in the order they came and the signal that ended the job, if any."""
    failed = [end for end in ends if end.failed]
    unprompted = [end for end in failed if not end.stopped]
    causes = [end for end in unprompted if not end.because_of_another]
    for candidates in (causes, unprompted):
        if candidates:
            return Verdict(candidates[0].status, candidates[0])
    if failed and signum:
        return Verdict(128 + signum, None, signum)
    return Verdict(failed[0].status, failed[0]) if failed else Verdict(0)
