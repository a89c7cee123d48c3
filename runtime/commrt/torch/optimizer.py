"""An optimizer whose gradients are reduced over ranks before it steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from commrt.api import global_process_set, is_initialized
from commrt.errors import ArgumentError
from commrt.operations import Average
from commrt.process_sets import ProcessSet
from commrt.torch.compression import Compression, Compressor
from commrt.torch.deltas import DeltaReducer
from commrt.torch.fleet import Fleet
from commrt.torch.guards import AfterStep
from commrt.torch.hooks import Reducer
from commrt.torch.naming import Named, name_parameters
from commrt.torch.options import Groups, Options, check_groups, check_passes, make_options
from commrt.torch.registry import Number, registry
from commrt.torch.table import Table
from commrt.types import ReduceOp

Closure = Callable[[], Any]

_DELEGATED = ("param_groups", "state", "defaults")


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer: gradients are reduced over the process set while backward runs.

    All ranks must wrap alike, in the same order, before or after `init()`. When every parameter
    has got its gradient, `backward()` returns with the reduced ones in `.grad`; else
    `synchronize()` or `step()` reduces them, and until then clipping sees local ones. Gradients of
    `backward_passes_per_step` passes are added, not averaged. `step()` raises before it changes a
    weight. A parameter that has no gradient on any rank keeps what it has.

    `groups`: lists of parameters that are reduced together, or into how many groups all are split.
    `bucket`: how large buckets are, in bytes or as in "8MiB", or "auto" or "formula"; see
    `COMMRT_BUCKET`, which counts if it is None.
    `deterministic`: gradients and buckets stay as they are laid out at first, so that two runs on
    the same ranks give the same bits; `auto` is then 4 MiB.
    `broadcast_buffers`: a module whose buffers every step replaces by the lowest rank's.
    `op=Adasum` lets each rank step by itself and combines what the steps changed.
    """

    _step_supports_amp_scaling = False  # GradScaler shall look for Inf itself and then skip step()

    def __init__(
        self, optimizer: torch.optim.Optimizer, named_parameters: Iterable[Named] | None = None,
        compression: Compressor | type[Compressor] = Compression.none,
        backward_passes_per_step: int = 1, op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0, num_groups: int = 0, groups: Groups = None,
        sparse_as_dense: bool = False, process_set: ProcessSet = global_process_set, *,
        broadcast_buffers: torch.nn.Module | None = None, bucket: int | str | None = None,
        deterministic: bool = False,
    ) -> None:  # fmt: skip
        # Not super().__init__(): state, groups and hooks are the wrapped optimizer's.
        _check(optimizer)
        options = make_options(
            compression, op, gradient_predivide_factor, num_groups, groups, sparse_as_dense,
            process_set, broadcast_buffers, bucket, deterministic,
        )  # fmt: skip
        named = name_parameters(optimizer, named_parameters)
        self._wire(optimizer, named, options, check_passes(backward_passes_per_step))
        self._number()

    def _wire(
        self, optimizer: torch.optim.Optimizer, named: Sequence[Named], options: Options,
        passes: int,
    ) -> None:  # fmt: skip
        """Set everything up. The number is drawn when it is first asked for."""
        check_groups(options, (param for _, param in named))
        self._optimizer = optimizer
        self._options = options
        self._passes = passes
        self._skipping = False
        self._after = AfterStep(options)
        self._number = Number()
        registry.claim(self, optimizer, self._number)
        self._table = Table(optimizer, named)
        fleet = Fleet(self._table, options, self._number)
        self._reducer: Reducer | DeltaReducer = (
            DeltaReducer(fleet) if options.op is ReduceOp.ADASUM else Reducer(fleet, passes)
        )
        weakref.finalize(self, self._reducer.close).atexit = False

    def step(self, closure: Closure | None = None) -> Any:
        """Reduce what is not reduced yet, then let the wrapped optimizer step."""
        if not self._reducer.active():
            return self._optimizer.step() if closure is None else self._optimizer.step(closure)
        result = self._reducer.step(self._optimizer, closure, self._skipping)
        self._after.run(self._table.named)
        return result

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's groups.

        After a backward that left parameters out, whoever looks at the groups may be about to
        change gradients, as GradScaler does: what is in flight is waited for first.
        """
        reducer = self.__dict__.get("_reducer")
        if reducer is not None:
            reducer.finish_what_is_in_flight()
        return self._optimizer.param_groups

    def synchronize(self) -> None:
        """Wait until every `.grad` is the reduced one. Does nothing if that is so already.

        Where graphs differ between ranks, call it before any other blocking operation: ranks whose
        graph had every parameter wait for the others inside `backward()`.
        """
        if self._reducer.active():
            self._reducer.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let `step()` take the gradients as they are; all ranks must do so."""
        self._skipping = True
        try:
            yield
        finally:
            self._skipping = False

    def describe(self) -> str:
        """Say in how many buckets gradients are reduced now, and why so many. Does not block."""
        return self._reducer.describe()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes add gradients up on this rank; the next one outside reduces the sums.

        All ranks must do so. Raises ArgumentError between a backward pass and `step()`.
        """
        self._reducer.pause()
        try:
            yield
        finally:
            self._reducer.resume()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients. What is in flight is waited for and dropped, on every rank alike."""
        try:
            self._drop()
        finally:
            self._optimizer.zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of passes. Raises ArgumentError between backward() and step()."""
        self._reducer.set_passes(check_passes(passes))
        self._passes = passes

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state, as it is without a wrapper."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the wrapped optimizer's state. Gradients under way are dropped."""
        self._drop()
        self._optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group whose gradients are reduced too. All ranks must do so."""
        self._optimizer.add_param_group(param_group)
        try:
            registry.check(self._optimizer.param_groups[-1]["params"], self)
        except ArgumentError:
            del self._optimizer.param_groups[-1]
            raise
        self._reducer.take_in()

    def __getattr__(self, name: str) -> Any:
        """Look up in the wrapped optimizer what the wrapper has not."""
        if name.startswith("__") or name == "_optimizer":
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set groups, state and defaults on the wrapped optimizer."""
        if name in _DELEGATED:
            setattr(self._optimizer, name, value)
        else:
            super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self._optimizer!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy what it was made of. A copy joins the runtime when it is first used."""
        return _again, (self._optimizer, self._table.named, self._options, self._passes)

    def _drop(self) -> None:
        if is_initialized() and self._reducer.active():
            self._reducer.drop()


def _again(
    optimizer: torch.optim.Optimizer, named: Sequence[Named], options: Options, passes: int
) -> DistributedOptimizer:
    made = DistributedOptimizer.__new__(DistributedOptimizer)
    made._wire(optimizer, named, options, passes)
    return made


def _check(optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ArgumentError(f"a torch.optim.Optimizer is needed, not {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ArgumentError(
            "LBFGS is not supported: its line search branches on values that are local to a rank"
        )
