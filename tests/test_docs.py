"""What the documentation says of settings and examples is so."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from commrt.config import Config
from harness import run_ranks

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "examples"
_ROW = re.compile(r"\| `(COMMRT_\w+)` \| `?([^`|]+?)`? \| .* \| (yes|no) \|")


def test_the_table_of_settings_is_that_of_the_code() -> None:
    rows = _ROW.findall((ROOT / "docs/reference/settings.md").read_text())
    told = {name: (default, alike == "yes") for name, default, alike in rows}
    fields = {f"COMMRT_{f.name.upper()}": f for f in dataclasses.fields(Config)}
    assert list(told) == list(fields)
    for name, (default, alike) in told.items():
        text = default.replace(" ", "")
        assert fields[name].metadata["parse"](text) == fields[name].default, name
        assert fields[name].metadata["shared"] == alike, name


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("example", "np", "said"),
    [
        ("numpy_arrays.py", 2, {0: "mean [0.5 0.5 0.5]"}),
        ("process_sets.py", 3, {0: "[2.]", 2: "[2.]"}),
        ("accumulate.py", 2, {0: "all ranks have the same weights: True"}),
    ],
)
def test_an_example_does_what_its_page_says(example: str, np: int, said: dict[int, str]) -> None:
    if example == "accumulate.py":
        pytest.importorskip("torch")
    result = run_ranks(EXAMPLES / example, np)
    assert result.status == 0, result.output
    assert set(result.stdout_of) == set(said)
    for rank, text in said.items():
        assert result.stdout_of[rank].startswith(text)


@pytest.mark.faults
def test_a_survivor_saves_the_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "checkpoint.pt"
    result = run_ranks(
        EXAMPLES / "save_on_failure.py", 2, args=[str(path)], commrun_args=["--grace", "30"]
    )
    assert result.status == 128 + 9, result.output
    assert torch.load(path)["step"] == 20
    assert "rank 1 on host" in result.report
