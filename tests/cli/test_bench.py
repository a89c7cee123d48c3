"""Every benchmark on real ranks, as small as it gets. No test looks at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import Result, environment, run_command

pytestmark = pytest.mark.ranks


def bench(*words: str, np: int = 2) -> Result:
    return run_command([sys.executable, "-m", "commrt", "bench", *words], np, timeout=100)


def rows(result: Result) -> list[list[str]]:
    """Return the cells of the table."""
    lines = result.stdout_of[0].splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def record(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


@pytest.mark.parametrize(
    ("peer", "named"), [("gloo", ["gloo"]), ("mpi", ["MPI in place", "MPI out of place"])]
)
def test_latency_writes_every_round_of_both_sides(
    peer: str, named: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "latency.json"
    result = bench("latency", "--iterations", "20", "--rounds", "2", "--peer", peer,
                   "--json", str(file))  # fmt: skip
    assert result.status == 0
    assert 1 not in result.stdout_of
    assert len(rows(result)) == 1 + len(named)
    found = record(file)
    assert (found["ranks"], found["benchmark"]) == (2, "latency")
    assert [s["side"] for s in found["series"] if s["what"] == "p50"] == ["commrt", *named]
    assert all(len(s["rounds"]) == 2 for s in found["series"])
    assert found["ratios"][0]["of"] == "commrt"
    assert "Open MPI" in found["versions"]["mpi"] or found["versions"]["mpi"]


@pytest.mark.parametrize("words", [[], ["--peer", "mpi"], ["--peer", "gloo", "--type", "int32"]])
def test_bandwidth_checks_every_size(words: list[str]) -> None:
    result = bench(
        "bandwidth", "--sizes", "4,4K,300000", "--rounds", "2", "--iterations", "2", *words
    )
    assert result.status == 0
    assert [(cells[0], cells[7]) for cells in rows(result)] == [
        ("4", "0"), ("4096", "0"), ("300000", "0"),
    ]  # fmt: skip
    assert "# wrong values: 0 OK" in result.stdout_of[0]


def test_bandwidth_refuses_a_type_that_the_peer_does_not_have() -> None:
    result = bench("bandwidth", "--sizes", "4K", "--type", "bfloat16", "--peer", "mpi")
    assert result.status == 2
    assert "MPI has no datatype for bfloat16" in result.stderr_of[0]


def test_idle_shows_every_rank_in_every_phase() -> None:
    result = bench("idle", "--seconds", "0.2")
    assert result.status in (0, 1)  # what 0.2 s cost is not the question here
    assert len(rows(result)) == 3 * 2


def test_soak_shows_every_rank_at_every_mark() -> None:
    result = bench("soak", "--operations", "200", "--rounds", "2")
    assert result.status in (0, 1)
    assert [cells[:3] for cells in rows(result)] == [
        [kind, mark, rank]
        for kind in ("named", "unnamed") for rank in ("0", "1") for mark in ("20", "110", "200")
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words", [["--peer", "gloo"], ["--peer", "mpi"], ["--hooks", "--peer", "ddp"]]
)
def test_model_compares_with_the_peer(words: list[str]) -> None:
    result = bench("model", "resnet18", "--rounds", "1", "--iterations", "1", *words)
    assert result.status == 0
    assert rows(result)[0][0] == "commrt"
    assert len(rows(result)) >= 2
    assert "# speed, commrt / " in result.stdout_of[0]


def test_hooks_states_its_method() -> None:
    result = bench("hooks", "--parameters", "20", "--rounds", "1", "--iterations", "2")
    assert result.status == 0
    assert "without what" in result.stdout_of[0]
    assert len(rows(result)) == 4


def test_step_tells_what_of_it_is_communication(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    result = bench("step", "resnet18", "--image", "32", "--batch", "2", "--rounds", "1",
                   "--iterations", "1", "--peer", "ddp", "--json", str(file))  # fmt: skip
    assert result.status == 0
    assert [cells[0] for cells in rows(result)] == ["commrt", "alone", "in", "DDP"]
    assert {s["what"] for s in record(file)["series"]} == {"step", "exposed", "waited"}


def test_step_refuses_an_image_too_small_for_batch_normalization() -> None:
    result = bench("step", "resnet18", "--image", "32", "--batch", "1")
    assert result.status == 2
    assert "batch normalization" in result.stderr_of[0]


def test_alone_it_is_one_rank_and_says_so() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "commrt", "bench", "latency", "--iterations", "5", "--rounds", "1"],
        env=environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "one rank" in found.stdout
    assert "no launcher" in found.stdout


def test_a_json_file_in_no_directory_is_refused_before_anything_runs(tmp_path: Path) -> None:
    result = bench("latency", "--json", str(tmp_path / "missing" / "file.json"))
    assert result.status not in (0, 2)
    assert "there is no such directory" in result.stderr_of[0]
