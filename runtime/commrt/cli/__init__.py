"""The command `commrt`. Importing it loads the standard library only."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from commrt.cli import bench, doctor
from commrt.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run `commrt`. Returns the exit status; argparse raises SystemExit on what it can't read."""
    parser = argparse.ArgumentParser(
        prog="commrt",
        description="Tools of the communication runtime. Start several ranks with commrun.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"commrt {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    bench.add_parser(commands)
    doctor.add_parser(commands)
    values = vars(parser.parse_args(argv))
    start = values.pop("start", None)
    if start is None:
        parser.print_help()
        return 0
    status: int = start(values)
    return status
