"""Ranks that have run out of data, and what still works without them."""

from __future__ import annotations

from collections.abc import Iterable

from commrt.types import Kind, Request, Signature


class Joining:
    """Who has joined since the last time that all had. Pure."""

    def __init__(self) -> None:
        self._joined: list[int] = []

    def add(self, rank: int) -> None:
        """Note that a rank submits nothing more until all have joined."""
        if rank not in self._joined:
            self._joined.append(rank)

    def last(self) -> int:
        """Return the rank that joined last, or -1."""
        return self._joined[-1] if self._joined else -1

    def has(self, rank: int) -> bool:
        """Has this rank joined?"""
        return rank in self._joined

    def ranks(self) -> set[int]:
        """Return who has joined."""
        return set(self._joined)

    def clear(self) -> None:
        """Note that all have joined, or that joining has failed."""
        self._joined.clear()

    def stands_in(self, signature: Signature, rank: int) -> bool:
        """Does an operation go on without this rank?"""
        return rank in self._joined and (signature.kind is Kind.ALLREDUCE or signature.partial)

    def refusal(self, request: Request, missing: Iterable[int]) -> str | None:
        """Say why an operation that still needs `missing` can't run, if it can't."""
        signature = request.signature
        gone = [r for r in missing if r in self._joined and not self.stands_in(signature, r)]
        if not gone or signature.kind is Kind.JOIN:
            return None
        who = f"rank {gone[0]}, which has" if len(gone) == 1 else f"ranks {gone}, which have"
        return (
            f"{request.signature.kind.value} {request.name!r} needs {who} joined: until every rank "
            "has joined, only allreduce goes on"
        )
