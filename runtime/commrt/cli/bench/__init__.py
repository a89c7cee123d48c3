"""`commrt bench`: its command line. The benchmarks themselves are loaded when one is started."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from commrt.cli.bench import options
from commrt.cli.bench.options import MODELS, TRAINABLE, TYPES, Peer

Kinds = Any
"""What `add_subparsers` returns; argparse gives its class no public name."""

_EPILOG = """\
Start it on several ranks: commrun -np 2 commrt bench latency --peer gloo
A peer runs in turn with commrt, in the same processes; what counts is the ratio of the medians."""


def add_parser(commands: Kinds) -> None:
    """Add `bench` to the commands of `commrt`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure the runtime, in turn with a peer",
        description="Measure the runtime, in turn with a peer.",
        epilog=_EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(start=partial(_help, parser))
    kinds = parser.add_subparsers(title="benchmarks", metavar="WHAT")
    for add in (_latency, _bandwidth, _idle, _soak, _hooks, _model, _step):
        add(kinds)


def _latency(kinds: Kinds) -> None:
    parser = _kind(kinds, options.Latency, "time of one small, blocking, named allreduce")
    parser.add_argument("--bytes", type=_size, default=4096, dest="nbytes", metavar="SIZE",
                        help="of the float32 array (default 4096)")  # fmt: skip
    _number(parser, "--iterations", 1000, "operations in a round")
    _peer(parser, "mpi", "gloo")


def _bandwidth(kinds: Kinds) -> None:
    parser = _kind(kinds, options.Bandwidth, "table over sizes in the style of nccl-tests")
    parser.add_argument("--sizes", type=options.read_sizes, default="4K:64M", metavar="SIZES",
                        help="LOW:HIGH[:FACTOR] or a list such as 4K,25M (default 4K:64M, "
                             "doubling)")  # fmt: skip
    parser.add_argument("--type", choices=TYPES, default="float32", dest="dtype")
    _number(parser, "--iterations", 0, "operations in a round; 0: by size", least=0)
    _peer(parser, "mpi", "gloo")
    parser.add_argument("--memory", choices=("numpy", "commrt"), default="numpy",
                        help="numpy's own, or commrt.zeros (default numpy)")  # fmt: skip


def _idle(kinds: Kinds) -> None:
    parser = _kind(kinds, options.Idle, "processor time while nothing moves", rounds=1)
    parser.add_argument("--seconds", type=_seconds, default=10.0, metavar="S",
                        help="of each measurement (default 10)")  # fmt: skip


def _soak(kinds: Kinds) -> None:
    parser = _kind(kinds, options.Soak, "memory and descriptors over many operations",
                   about="readings after the first")  # fmt: skip
    _number(parser, "--operations", 100_000, "operations, named and again unnamed")


def _hooks(kinds: Kinds) -> None:
    parser = _kind(kinds, options.Hooks, "cost of hooks and step() for each parameter")
    _number(parser, "--parameters", 500, "parameters of the model")
    _number(parser, "--iterations", 50, "steps in a round")


def _model(kinds: Kinds) -> None:
    parser = _kind(kinds, options.Model, "communication of a known model's gradients")
    parser.add_argument("name", choices=MODELS, metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--hooks", action="store_true",
                        help="through autograd, hooks and optimizer")  # fmt: skip
    _number(parser, "--iterations", 3, "repetitions in a round")
    _peer(parser, "mpi", "gloo", "ddp")


def _step(kinds: Kinds) -> None:
    parser = _kind(kinds, options.Step, "whole training step, and what of it is communication")
    parser.add_argument("name", choices=TRAINABLE, metavar="NAME", help=", ".join(TRAINABLE))
    _number(parser, "--batch", 8, "images on each rank")
    _number(parser, "--image", 64, "pixels along each side of an image")
    _number(parser, "--iterations", 3, "steps in a round, after 6 that do not count")
    _number(parser, "--settle", 50, "steps before the first round: buckets find their size")
    parser.add_argument(
        "--buckets",
        type=options.read_sizes,
        default=(),
        metavar="SIZES",
        help="fixed bucket sizes to compare with, such as 1M:64M:4",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print where each bucket of the last step spent its time",
    )
    _peer(parser, "ddp")


def _kind(
    kinds: Kinds, made: type[Any], help: str, rounds: int = 5, about: str = "rounds"
) -> argparse.ArgumentParser:
    """Add a benchmark whose name is that of its class of options, in small letters."""
    name = made.__name__.lower()
    parser: argparse.ArgumentParser = kinds.add_parser(
        name, help=help, description=help[0].upper() + help[1:] + ".", allow_abbrev=False
    )
    _number(parser, "--rounds", rounds, about)
    parser.add_argument("--json", metavar="FILE", help="write figures, machine and versions there")
    add_hosts(parser.add_argument_group("test hosts (not under commrun; as root)"))
    parser.set_defaults(start=partial(_start, name, made))
    return parser


def add_hosts(parser: argparse._ActionsContainer) -> None:
    """Add the options that say where a benchmark runs."""
    _number(parser, "--hosts", 0, "run on N hosts made of network namespaces; 0: here", least=0)
    parser.add_argument("--rate", metavar="RATE", help="of each host's link, such as 250mbit")
    _number(parser, "--ranks-per-host", 1, "ranks on each host")


def _number(
    parser: argparse._ActionsContainer, flag: str, default: int, help: str, least: int = 1
) -> None:
    parser.add_argument(flag, type=partial(_count, least), default=default, metavar="N",
                        help=f"{help} (default {default})")  # fmt: skip


def _peer(parser: argparse.ArgumentParser, *names: Peer) -> None:
    parser.add_argument("--peer", choices=names, help="what to compare with: " + ", ".join(names))


def _start(name: str, made: type[Any], values: dict[str, Any]) -> int:
    json = values.pop("json")
    where = {name: values.pop(name) for name in ("hosts", "rate", "ranks_per_host")}
    if where["hosts"]:
        from commrt.cli.bench.on_hosts import run_on_hosts

        return run_on_hosts(sys.argv[1:], options.Hosts(**where))
    from commrt.cli.bench.job import run  # here, so that --help is quick

    return run(name, made(**values), json)


def _help(parser: argparse.ArgumentParser, _: dict[str, Any]) -> int:
    parser.print_help()
    return 0


def _size(text: str) -> int:
    return options.read_sizes(text)[0]


def _count(least: int, text: str) -> int:
    value = int(text)
    if value < least:
        raise argparse.ArgumentTypeError(f"{value} is less than {least}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value
