"""`commrt doctor`: its command line. What it looks at is loaded when it is started."""

from __future__ import annotations

from typing import Any

from commrt.cli.bench import Kinds

_ABOUT = """\
Show versions, machine, MPI, network and settings as a rank started here would find them, and what
is wrong with them. MPI is not started, but with --links. The exit status is 1 if no job could run
like this."""


def add_parser(commands: Kinds) -> None:
    """Add `doctor` to the commands of `commrt`."""
    parser = commands.add_parser(
        "doctor",
        help="show what is here and what is wrong with it",
        description=_ABOUT,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--links",
        action="store_true",
        help="under commrun: instead start all ranks, and show what moves data between them, why, "
        "and how fast",
    )
    parser.set_defaults(start=_start)


def _start(values: dict[str, Any]) -> int:
    if values["links"]:
        from commrt.cli.doctor import links

        return links.run()
    from commrt.cli.doctor.report import run  # here, so that --help is quick

    return run()
