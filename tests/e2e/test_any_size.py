"""Every transport between real ranks, around every switch point."""

from __future__ import annotations

import pytest

from harness import run_ranks
from stress import SCRIPT

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize(
    ("np", "transport"), [(2, "shm"), (3, "shm"), (2, "tcp"), (3, "tcp"), (2, "mpi"), (3, "mpi")]
)
def test_any_size_dtype_and_operation_is_right_on_a(transport: str, np: int) -> None:
    result = run_ranks(
        SCRIPT, np, args=[str(3 << 20)], env={"COMMRT_TRANSPORT": transport}, timeout=120
    )
    assert result.status == 0, result.output
    assert result.stdout_of == dict.fromkeys(range(np), "ok\n")
