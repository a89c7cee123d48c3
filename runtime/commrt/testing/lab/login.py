"""How a command gets to a host."""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Mapping
from pathlib import Path

from commrt.testing.lab.network import INTERFACE
from commrt.testing.lab.spaces import PATH, tool

_AGENT = """\
#!/bin/sh
# In ssh's place: agent [-OPTION ...] ADDRESS WORD ...
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
case $host in
%s
esac
echo "there is no test host $host" >&2
exit 255
"""


def login(space: str, host: str, files: Path) -> list[str]:
    """Return the words that bring the command behind them to a host.

    As through ssh, it finds the variables of a fresh login and nothing of our own environment.
    """
    user = pwd.getpwuid(os.geteuid())
    return [
        *(tool("ip"), "netns", "exec", space, "unshare", "--uts"),
        *("sh", "-c", 'hostname "$0" && exec "$@"', host),
        *("env", "-i", f"HOME={user.pw_dir}", f"USER={user.pw_name}", "SHELL=/bin/sh"),
        *(f"PATH={PATH}", f"TMPDIR={files}", f"XDG_CACHE_HOME={files}", "LANG=C.UTF-8"),
        f"GLOO_SOCKET_IFNAME={INTERFACE}",
    ]


def write_agent(path: Path, logins: Mapping[str, list[str]]) -> None:
    """Write a script that takes ssh's place: from a host's address to its login."""
    cases = [f'{ip}) exec {shlex.join(words)} sh -c "$*" ;;' for ip, words in logins.items()]
    path.write_text(_AGENT % "\n".join(cases))
    path.chmod(0o700)
