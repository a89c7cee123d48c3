"""The command line of `commrun`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from commrun.spec import JobSpec, UsageError

_USAGE = "commrun [options] -np N command [its options]"
_EPILOG = """\
Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, so
that scripts for torch.distributed start unchanged. The exit status is that of the rank that
failed first, by cause; 128 + N for signal N. Other hosts need Python, commrun and the command at
the same paths as this one."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="commrun",
        usage=_USAGE,
        description="Start the ranks of a job through the MPI launcher that is there.",
        epilog=_EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("-np", "-n", type=int, metavar="N", help="number of ranks; default: the slots of -H")
    add("-H", "--hosts", default="", metavar="HOST:SLOTS,...", help="where they run; default: here")
    add("-x", action="append", default=[], metavar="NAME[=VALUE]", dest="forward",
        help="a variable for all ranks, on other hosts too")  # fmt: skip
    add("--grace", type=_seconds, default=5.0, metavar="S",
        help="seconds that ranks get to act on another's failure (default 5)")  # fmt: skip
    add("--start-timeout", type=_seconds, default=60.0, metavar="S",
        help="seconds until all ranks must have started (default 60)")  # fmt: skip
    add("--mpi-args", type=shlex.split, default=[], metavar="WORDS", help="more words for mpirun")
    add("--verbose", action="store_true", help="say what is done, and what mpirun says")
    add("--dry-run", action="store_true", help="print what would be run, and run nothing")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def parse(argv: Sequence[str]) -> JobSpec:
    """Read the command line. Raises SystemExit as argparse does, UsageError without a command."""
    options = vars(_parser().parse_args(argv))
    command = options.pop("command")
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise UsageError("no command given; see commrun --help")
    for name in ("forward", "mpi_args"):
        options[name] = tuple(options[name])
    return JobSpec(command=tuple(command), **options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `commrun`. Returns the exit status; 2 if what was asked can't be done."""
    try:
        spec = parse(sys.argv[1:] if argv is None else argv)
        from commrun.run import run  # here, so that --help is quick

        return run(spec)
    except UsageError as exc:
        print(f"commrun: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
