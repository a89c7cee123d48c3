from __future__ import annotations

import pytest

from commrt.testing.lab.hosts import missing


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    why = missing()
    if why is not None:
        pytest.skip(why)
