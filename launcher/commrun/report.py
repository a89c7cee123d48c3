"""The words at the end of a job that failed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from commrun.ledger import Ended, Verdict, signal_text

_LINES = 10
_NAMED = 8


def name_ranks(ranks: Sequence[int]) -> str:
    """Return such as `rank 1` or `ranks 0, 2 and 3`."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _NAMED:
        return f"{len(ranks)} ranks"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def report(verdict: Verdict, ends: Sequence[Ended]) -> list[str]:
    """Return the lines, without `commrun: ` before each; none for a success."""
    if verdict.cause is None:
        if verdict.signum:
            return [f"ended by {signal_text(verdict.signum)}; exit status {verdict.status}"]
        return []
    cause = verdict.cause
    return [*_of_cause(cause), *_earlier(cause, ends), *_of_others(verdict, cause, ends)]


def _of_cause(cause: Ended) -> list[str]:
    verb = "ended with" if cause.code is not None and cause.code >= 0 else "was"
    who = f"rank {cause.rank} on host {cause.host}"
    lines = [f"{who} {verb} {cause.how}, {cause.seconds:.1f} s after start"]
    if cause.consequence:
        lines.append(f"  it failed because of another rank: {cause.consequence}")
    if cause.tail:
        lines.append("  its last lines of error output:")
        lines += [f"  | {line}" for line in cause.tail[-_LINES:]]
    return lines


def _earlier(cause: Ended, ends: Sequence[Ended]) -> list[str]:
    """A consequence without a failed cause: then somebody left without a failure."""
    if not cause.because_of_another:
        return []
    left = [end.rank for end in ends[: ends.index(cause)] if not end.failed]
    return [f"{name_ranks(left)} had ended before with exit status 0"] if left else []


def _of_others(verdict: Verdict, cause: Ended, ends: Sequence[Ended]) -> list[str]:
    others = [end for end in ends if end.failed and end is not cause]
    alike: dict[str, list[int]] = {}
    dragged = []
    for end in others:
        if end.stopped or end.because_of_another:
            dragged.append(end.rank)
        else:
            alike.setdefault(end.how, []).append(end.rank)
    same = alike.pop(cause.how, [])
    lines = [
        f"{name_ranks(ranks)} failed by {_self(ranks)} too: {how}" for how, ranks in alike.items()
    ]
    last = []
    if same:
        last.append(f"{name_ranks(same)} failed by {_self(same)} too, in the same way")
    if dragged:
        last.append(f"{name_ranks(dragged)} ended because of it")
    return [*lines, *last[:-1], "; ".join([*last[-1:], f"exit status {verdict.status}"])]


def _self(ranks: Sequence[int]) -> str:
    return "itself" if len(ranks) == 1 else "themselves"
