from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import commrt.torch as hvd
from harness import environment

_SCRIPT = """
import os, sys, stat
from pathlib import Path
import commrt.torch as hvd


def train(scale, offset=0):
    hvd.init()
    here = Path(sys.argv[-1])
    modes = [oct(stat.S_IMODE(path.stat().st_mode)) for path in (here, here / "call")]
    return hvd.rank() * scale + offset, modes


def fail(rank):
    hvd.init()
    if hvd.rank() == rank:
        raise ValueError(f"no luck on {rank}")
    hvd.barrier()


def unpicklable():
    import threading
    return threading.Lock()


def vanish():
    os._exit(3)


def attempt(*args, **options):
    try:
        print(hvd.run(*args, **options), flush=True)
    except hvd.RemoteError as error:
        print(error, flush=True)


attempt(train, args=(10,), kwargs={"offset": 1}, np=2)
attempt(fail, args=(1,), num_proc=2)
attempt(unpicklable)
attempt(vanish)
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("run")
    script = directory / "script.py"
    script.write_text(_SCRIPT)
    temporary = Path(tempfile.mkdtemp(dir=directory))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=100,
        env={**environment(), "TMPDIR": str(temporary)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [path.name for path in temporary.iterdir() if "commrt" in path.name] == []
    return done.stdout


@pytest.mark.ranks
def test_results_come_in_rank_order_through_private_files(output: str) -> None:
    assert "[(1, ['0o700', '0o600']), (11, ['0o700', '0o600'])]" in output


@pytest.mark.ranks
def test_what_a_rank_raised_is_raised_with_its_text(output: str) -> None:
    assert "run: rank 1 raised\nTraceback" in output
    assert "ValueError: no luck on 1" in output


@pytest.mark.ranks
def test_a_result_that_cannot_be_pickled_is_an_error(output: str) -> None:
    assert "run: rank 0 raised\nTraceback" in output
    assert "pickle" in output


@pytest.mark.ranks
def test_a_rank_that_vanishes_is_an_error(output: str) -> None:
    assert "exit status 3, no result of ranks [0]" in output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hostfile": "hosts"}, "give hosts="),
        ({"use_gloo": True}, "through MPI"),
        ({"min_np": 1}, "can't change"),
        ({"np": 0}, "1 or more"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_reason(
    options: dict[str, object], words: str
) -> None:
    with pytest.raises(hvd.ArgumentError, match=words):
        hvd.run(os.getpid, **options)  # type: ignore[arg-type]
