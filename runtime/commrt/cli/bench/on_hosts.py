"""Runs a benchmark on test hosts instead of on this machine's own network."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from commrt.cli.bench import add_hosts
from commrt.cli.bench.options import Hosts
from commrt.config import LauncherEnv, own_variables
from commrt.testing.lab.hosts import Lab, LabError, missing


def run_on_hosts(words: Sequence[str], where: Hosts) -> int:
    """Run `commrt` with these words, but for those that ask for hosts, on every rank there.

    Return its exit status, or 2 if there can be no hosts.
    """
    under = LauncherEnv.from_environment().family
    reason = f"start it without {under}, it starts ranks itself" if under else missing()
    if reason is not None:
        print(f"commrt bench --hosts: {reason}", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_hosts(parser)
    command = [sys.executable, "-m", "commrt", *parser.parse_known_args(words)[1]]
    signal.signal(signal.SIGTERM, _leave)  # else the hosts would stay
    try:
        with Lab(where.hosts, where.rate) as lab:
            print(
                f"# {where.hosts} test hosts on this machine, {where.ranks_per_host} rank(s) on "
                f"each, links of {where.rate or 'no limited rate'}",
                flush=True,
            )
            return lab.popen(0, lab.job(where.ranks_per_host, command, own_variables())).wait()
    except (LabError, ValueError) as exc:
        print(f"commrt bench --hosts: {exc}", file=sys.stderr)
        return 2


def _leave(signum: int, _: FrameType | None) -> None:
    raise SystemExit(128 + signum)
