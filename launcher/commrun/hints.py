"""What to do about an mpirun that could not start a job. Pure."""

from __future__ import annotations

_HINTS = (
    ("not enough slots", "give the hosts more slots: -H HOST:SLOTS"),
    ("Host key verification failed", "ssh must reach every host of -H without a question"),
    ("Permission denied", "ssh must reach every host of -H without a password"),
    ("Could not resolve hostname", "a host of -H has no address"),
    ("plm_ssh_agent", "mpirun found no ssh to reach the other hosts with"),
    ("can't reach commrun", "a firewall may be between the hosts"),
    ("No such file", "other hosts need Python and commrun at the same paths as this one"),
    ("was unable to launch", "other hosts need Python and commrun at the same paths as this one"),
    ("LIMITS_PIPES", "mpirun ran out of open files: it has some seven for each rank; `ulimit -n`"),
    ("unrecognized", "one of the words of --mpi-args is unknown to mpirun"),
)


def hint(said: str) -> str:
    """Return advice for what mpirun said, or general advice."""
    for words, advice in _HINTS:
        if words in said:
            return advice
    return "`commrun --dry-run ...` shows how mpirun is started, `--verbose` all that it says"
