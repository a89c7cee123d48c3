"""The command line."""

import subprocess
import sys

import pytest

from commrun.cli import main, parse
from commrun.spec import JobSpec, UsageError
from harness import environment


def test_options_after_the_command_belong_to_the_command():
    spec = parse(["-np", "2", "--grace", "1", "python", "x.py", "--grace", "7", "-np", "--", "-H"])
    assert spec.command == ("python", "x.py", "--grace", "7", "-np", "--", "-H")
    assert (spec.np, spec.grace) == (2, 1.0)


def test_all_options():
    words = "-n 3 -H a:2,b:1 -x A=1 -x B --grace 2.5 --start-timeout 9 --verbose --dry-run"
    spec = parse([*words.split(), "--mpi-args=--x", "--", "-odd"])
    assert spec == JobSpec(
        ("-odd",), 3, "a:2,b:1", 2.5, 9.0, ("A=1", "B"), ("--x",), verbose=True, dry_run=True
    )


def test_words_for_mpirun_are_split_like_a_shell_does():
    spec = parse(["-np", "1", "--mpi-args", "--mca a 'b c'", "x"])
    assert spec.mpi_args == ("--mca", "a", "b c")


@pytest.mark.parametrize(
    "argv", [["--nope", "x"], ["-np", "two", "x"], ["--grace", "-1", "x"], ["--grace", "nan", "x"]]
)
def test_a_wrong_option_is_refused(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(argv)
    assert caught.value.code == 2
    assert argv[0] in capsys.readouterr().err


def test_a_command_is_needed(capsys):
    with pytest.raises(UsageError):
        parse(["-np", "2"])
    assert main(["-np", "2"]) == 2
    assert capsys.readouterr().err == "commrun: no command given; see commrun --help\n"


def test_help_loads_little():
    code = (
        "import sys, commrun.cli\n"
        "try: commrun.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'subprocess', 'socket', 'ctypes', 'commrt', 'numpy', 'mpi4py'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(), capture_output=True)


def test_the_shim_loads_the_standard_library_and_its_own_few_modules():
    code = (
        "import sys; sys.path.append(sys.argv[1]); import commrun.shim\n"
        "names = {name.partition('.')[0] for name in sys.modules} - {'__main__'}\n"
        "print(sorted(names - set(sys.stdlib_module_names)))\n"
        "print(sorted(name for name in sys.modules if name.startswith('commrun.')))"
    )
    import commrun

    root = str(commrun.__path__[0]).rpartition("/")[0]
    out = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, root], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    modules = ["command", "directories", "door", "guard", "ports", "quarters", "shim", "wire"]
    assert out[0] == "['commrun']"
    assert out[1] == str([f"commrun.{name}" for name in modules])
