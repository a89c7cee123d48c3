"""What a user gets: light imports, commands that answer, documented modules."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted([*ROOT.glob("runtime/**/*.py"), *ROOT.glob("launcher/**/*.py")])
TEXTS = sorted(
    path
    for folder in ("runtime", "launcher", "tests", "docs", ".ci", "")
    for path in ROOT.glob(f"{folder}/**/*" if folder else "*")
    if path.is_file() and path.suffix in ("", ".py", ".md", ".toml", ".txt", ".yml", ".yaml")
)
LEFTOVERS = re.compile(r"FIXM[E]|XX[X]|TOD[O](?!.*#\d)|[Ll]orem ipsu[m]")


def output_of(*command: str | Path) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def loaded_by(statement: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter holds after `statement`."""
    show = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    return set(output_of(sys.executable, "-c", f"{statement}\n{show}").split())


def test_importing_commrt_loads_no_framework_compiler_or_mpi() -> None:
    heavy = {"cupy", "jax", "llvmlite", "ml_dtypes", "mpi4py", "numba", "scipy", "torch"}
    assert loaded_by("import commrt") & heavy == set()


def test_the_launcher_loads_only_itself_commrt_and_the_standard_library() -> None:
    added = loaded_by("import commrun.cli") - loaded_by("pass") - sys.stdlib_module_names
    assert added - {"commrun", "commrt"} == set()


def test_commrun_help_answers() -> None:
    assert "usage: commrun" in output_of(Path(sys.executable).with_name("commrun"), "--help")


def test_every_module_says_what_it_is() -> None:
    silent = [path for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_no_file_holds_leftovers_or_the_folder_it_was_written_in() -> None:
    texts = {path: path.read_text() for path in TEXTS}
    assert [path for path, text in texts.items() if LEFTOVERS.search(text)] == []
    assert [path for path, text in texts.items() if str(ROOT) in text] == []
