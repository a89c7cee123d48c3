"""The command line of `commrt`."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from commrt import cli
from commrt.cli.bench import options
from commrt.cli.bench.options import read_sizes
from harness import environment

KINDS = ("latency", "bandwidth", "idle", "soak", "hooks", "model", "step")


def test_without_arguments_it_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert "usage: commrt" in capsys.readouterr().out


def test_bench_alone_prints_what_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench"]) == 0
    shown = capsys.readouterr().out
    assert [kind for kind in KINDS if kind not in shown] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_benchmark_explains_itself(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", kind, "--help"])
    assert stop.value.code == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["report"],
        ["bench", "latency", "--rounds", "0"],
        ["bench", "latency", "--bytes", "many"],
        ["bench", "bandwidth", "--sizes", "1M:4K"],
        ["bench", "bandwidth", "--type", "complex64"],
        ["bench", "idle", "--seconds", "-1"],
        ["bench", "model", "alexnet"],
        ["bench", "step", "bert-large"],
        ["bench", "step", "resnet18", "--peer", "mpi"],
    ],
)
def test_what_cannot_be_read_ends_with_status_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 2


def test_options_of_a_benchmark_are_those_of_its_class() -> None:
    words = ["bench", "bandwidth", "--sizes", "4K,25M", "--type", "int32", "--peer", "mpi"]
    parser = argparse.ArgumentParser()
    cli.bench.add_parser(parser.add_subparsers())
    values = vars(parser.parse_args(words))
    start, json = values.pop("start"), values.pop("json")
    where = {name: values.pop(name) for name in ("hosts", "rate", "ranks_per_host")}
    assert options.Hosts(**where) == options.Hosts(0, None, 1)
    assert start.args == ("bandwidth", options.Bandwidth)
    assert json is None
    assert options.Bandwidth(**values) == options.Bandwidth(
        5, (4096, 25 << 20), "int32", 0, "mpi", "numpy"
    )


def test_importing_it_loads_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import commrt.cli\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert set(found.stdout.split()) - set(sys.stdlib_module_names) == {"commrt"}


def test_sizes_are_powers_of_two_of_the_unit() -> None:
    assert read_sizes("4K,25M,7") == (4096, 25 << 20, 7)
    assert read_sizes("4K:16K") == (4096, 8192, 16384)
    assert read_sizes("1K:64M:16") == (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26)


@pytest.mark.parametrize("text", ["", "0", "4K:", "4K:8K:1", "8K:4K", "4K;8K", "-4K"])
def test_sizes_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_sizes(text)
