"""Training steps of one module alone, under commrt's optimizer, and under torch's DDP."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

import commrt
from commrt.cli.bench.console import Console
from commrt.cli.bench.rounds import interleave, mean_over_ranks, settle
from commrt.torch import DistributedOptimizer

Loss = Callable[[nn.Module], Tensor]
"""Runs a module forward."""

BUCKET_CAPS = (1, 5, 25)
"""MiB of a DDP bucket; 25 is its default."""

_TRIALS = 3
_WARM_UP = 6
"""Steps after which ranks follow a plan again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a step, and of parts of it.

    `finish`: backward, `step()` and `zero_grad()`. `waited`: of that, in calls of commrt.
    `busy`: the rest of `finish`. `processor`: processor time of the calling thread in `finish`.
    """

    step: float
    finish: float
    waited: float
    busy: float
    processor: float


class Sums(nn.Module):
    """Parameters whose loss is the sum of all: the least that gives each one a gradient.

    Backward makes the gradients in reverse order, as a network's layers do.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def forward(self) -> Tensor:
        """Return the sum, a scalar."""
        total = torch.zeros(())
        for weight in self.weights:
            total = total + weight.sum()
        return total


class Trainee:
    """A module with its optimizer, ready to take steps."""

    def __init__(
        self, name: str, module: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss
    ) -> None:
        self.name = name
        self._module = module
        self._optimizer = optimizer
        self._loss = loss

    def forward(self) -> Tensor:
        """Return the loss."""
        return self._loss(self._module)

    def note(self) -> str:
        """Say how gradients are cut into buckets, if commrt does it."""
        optimizer = self._optimizer
        return optimizer.describe() if isinstance(optimizer, DistributedOptimizer) else ""

    def finish(self, loss: Tensor) -> None:
        """Make gradients, use them and drop them: who owns them when is each side's own affair."""
        loss.backward()  # type: ignore[no-untyped-call]
        self._update()

    def _update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()


class InStep(Trainee):
    """A trainee that waits in each step until all ranks have made their gradients."""

    def finish(self, loss: Tensor) -> None:
        """See `Trainee`."""
        loss.backward()  # type: ignore[no-untyped-call]
        commrt.barrier()
        self._update()


def run_forward(module: nn.Module) -> Tensor:
    """Be the `Loss` of a module that computes its own."""
    loss: Tensor = module()
    return loss


def alone(module: nn.Module, loss: Loss) -> Trainee:
    """Train without communication."""
    return Trainee("alone", module, _sgd(module), loss)


def in_step(module: nn.Module, loss: Loss) -> Trainee:
    """Train without communication, every step as long as the slowest rank's."""
    return InStep("in step", module, _sgd(module), loss)


def ours(module: nn.Module, loss: Loss, bucket: int | None = None) -> Trainee:
    """Train with commrt's optimizer. `bucket`: bytes; None: as the settings say."""
    optimizer = DistributedOptimizer(
        _sgd(module), named_parameters=module.named_parameters(), bucket=bucket
    )
    name = "commrt" if bucket is None else f"{bucket / (1 << 20):g} MiB"
    return Trainee(name, module, optimizer, loss)


def ddp(module: nn.Module, loss: Loss, cap: int) -> Trainee:
    """Train under DistributedDataParallel as fast as it goes, with buckets of `cap` MiB."""
    wrapped = nn.parallel.DistributedDataParallel(
        module, bucket_cap_mb=cap, gradient_as_bucket_view=True, static_graph=True
    )
    return Trainee(f"DDP {cap} MiB", wrapped, _sgd(module), loss)


def best_ddp(make: Callable[[], nn.Module], loss: Loss, console: Console) -> Trainee:
    """Try DDP's bucket sizes one after the other; return a new module under the fastest."""
    seconds = []
    for cap in BUCKET_CAPS:
        trial = ddp(make(), loss, cap)
        console.progress(f"trying {trial.name}")
        settle()
        seconds.append(measure(trial, _TRIALS).step)
        del trial
        gc.collect()
    mean = mean_over_ranks(seconds)
    return ddp(make(), loss, BUCKET_CAPS[mean.index(min(mean))])


def costs(
    trainees: Sequence[Trainee], iterations: int, rounds: int, console: Console
) -> dict[str, list[Cost]]:
    """Measure in turn; return the costs in every round by name, averaged over ranks."""
    measured = interleave(
        {trainee.name: partial(measure, trainee, iterations) for trainee in trainees},
        rounds, settle, console.progress,
    )  # fmt: skip
    return {
        name: [Cost(*mean_over_ranks(dataclasses.astuple(cost))) for cost in found]
        for name, found in measured.items()
    }


def measure(trainee: Trainee, iterations: int) -> Cost:
    """Take some steps that do not count, then some that do; return the median of each part."""
    for _ in range(_WARM_UP):
        trainee.finish(trainee.forward())
    steps = [dataclasses.astuple(_step(trainee)) for _ in range(iterations)]
    return Cost(*(statistics.median(part) for part in zip(*steps, strict=True)))


def _step(trainee: Trainee) -> Cost:
    start = time.perf_counter()
    loss = trainee.forward()
    waited = commrt.stats().exposed_seconds
    began, computing = time.perf_counter(), time.thread_time()
    trainee.finish(loss)
    computing = time.thread_time() - computing
    end = time.perf_counter()
    waited = commrt.stats().exposed_seconds - waited
    finish = end - began
    return Cost(end - start, finish, waited, finish - waited, computing)


def _sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.0, foreach=True)  # the weights stay finite
