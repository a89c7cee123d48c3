"""Who is late, and since when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from commrt.core.ids import Key

_SHOWN = 6


class StallWatch:
    """Times operations that wait for ranks. Seconds; `fail` 0 means never. Pure."""

    def __init__(self, warn: float, fail: float, hosts: Sequence[str]) -> None:
        self._warn = warn
        self._fail = fail
        self._hosts = tuple(hosts)
        self._since: dict[Key, float] = {}
        self._warned: set[Key] = set()

    def begin(self, key: Key, now: float) -> None:
        """Start timing: the first rank has submitted `key`, or one that did so earlier is told."""
        if now >= self._since.get(key, inf):
            return
        in_order = key not in self._since and now >= next(reversed(self._since.values()), -inf)
        self._since[key] = now
        if not in_order:  # `deadline` looks at the first ones only
            self._since = dict(sorted(self._since.items(), key=lambda item: item[1]))

    def end(self, key: Key) -> None:
        """Stop timing `key`."""
        self._since.pop(key, None)
        self._warned.discard(key)

    def late(self, now: float) -> list[Key]:
        """Return what became late since the last call."""
        late = [
            key
            for key, since in self._since.items()
            if key not in self._warned and now >= since + self._warn
        ]
        self._warned.update(late)
        return late

    def expired(self, now: float) -> list[Key]:
        """Return what must fail now."""
        if not self._fail:
            return []
        return [key for key, since in self._since.items() if now >= since + self._fail]

    def deadline(self) -> float | None:
        """When `late` or `expired` can next return something; operations began in order."""
        unwarned = next((s for key, s in self._since.items() if key not in self._warned), None)
        times = [] if unwarned is None else [unwarned + self._warn]
        if self._fail and self._since:
            times.append(next(iter(self._since.values())) + self._fail)
        return min(times, default=None)

    def text(self, keys: Sequence[Key], missing: Callable[[Key], list[int]], now: float) -> str:
        """Name the late ranks, their hosts and the operations."""
        by_ranks: dict[tuple[int, ...], list[Key]] = {}
        for key in keys:
            by_ranks.setdefault(tuple(missing(key)), []).append(key)
        parts = []
        for ranks, late in by_ranks.items():
            who = ", ".join(f"{r} (on {self._hosts[r]})" for r in ranks[:_SHOWN])
            more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
            names = ", ".join(repr(name) for _, name in late[:_SHOWN])
            names += f" and {len(late) - _SHOWN} more" if len(late) > _SHOWN else ""
            seconds = max(now - self._since[key] for key in late)
            plural = "ranks" if len(ranks) > 1 else "rank"
            parts.append(f"{plural} {who}{more} did not submit {names} for {seconds:.0f} s")
        return "; ".join(parts) + (
            ". The others wait. Is the process stopped, slower, or does it run another operation?"
        )
