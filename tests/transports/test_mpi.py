"""The message transport over MPI between real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import run_ranks
from transports.conformance import CHECKS


@pytest.mark.ranks
@pytest.mark.parametrize("np", [2, 3])
def test_mpi_transport_conforms(np: int) -> None:
    result = run_ranks(Path(__file__).with_name("mpi_conformance.py"), np, args=["10"])
    assert result.status == 0, result.output
    said = {rank: text.split("\n")[0] for rank, text in result.stdout_of.items()}
    assert said == {rank: f"conforms {len(CHECKS)}" for rank in range(np)}
