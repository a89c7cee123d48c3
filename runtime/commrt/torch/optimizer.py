"""An optimizer whose gradients are reduced over ranks before it steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from commrt.api import global_process_set, session
from commrt.core.bucketing import FixedBuckets
from commrt.errors import ArgumentError
from commrt.operations import Average
from commrt.process_sets import ProcessSet
from commrt.torch.buckets import Bucket, Named, plan_buckets
from commrt.torch.compression import Compression, Compressor, codec_of
from commrt.torch.hooks import Reducer
from commrt.torch.naming import name_gradients
from commrt.types import Kind, ReduceOp, Signature

Closure = Callable[[], Any]

_DELEGATED = ("param_groups", "state", "defaults")


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer: gradients are reduced over the process set while backward runs.

    All ranks must wrap alike, in the same order. When every parameter has got its gradient,
    `backward()` returns with the reduced ones in `.grad`; else `synchronize()` or `step()` reduces
    them, and until then clipping sees local ones. Gradients of `backward_passes_per_step`
    passes are added, not averaged. `step()` raises before it changes a weight. A parameter that
    has no gradient on any rank keeps what it has.
    """

    _step_supports_amp_scaling = False  # GradScaler shall look for Inf itself and then skip step()

    def __init__(
        self, optimizer: torch.optim.Optimizer, named_parameters: Iterable[Named] | None = None,
        compression: Compressor = Compression.none, backward_passes_per_step: int = 1,
        op: ReduceOp = Average, gradient_predivide_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> None:  # fmt: skip
        # Not super().__init__(): state, groups and hooks are the wrapped optimizer's.
        _check(optimizer)
        self._optimizer = optimizer
        self._skipping = False
        self._reduction = _reduction(op, compression, gradient_predivide_factor, process_set)
        named = name_gradients(optimizer, named_parameters)
        self._number = _register(self)
        passes = _passes(backward_passes_per_step)
        self._reducer: Reducer | None = None
        if process_set.size() > 1 and session().runtime.topology.rank in process_set.ranks:
            self._reducer = Reducer(self._plan(named, 0), passes, process_set)
            weakref.finalize(self, self._reducer.close).atexit = False

    def step(self, closure: Closure | None = None) -> Any:
        """Reduce what is not reduced yet, then let the wrapped optimizer step."""
        reducer = self._reducer
        if reducer is None:
            return _step(self._optimizer, closure)
        if closure is not None:
            closure = _reducing(closure, reducer)
        elif self._skipping:
            reducer.drop()
        else:
            reducer.synchronize()
        reducer.refuse_strangers(self._optimizer)
        result = _step(self._optimizer, closure)
        reducer.reset()
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
        if self._reducer is not None:
            self._reducer.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let `step()` take the gradients as they are; all ranks must do so."""
        self._skipping = True
        try:
            yield
        finally:
            self._skipping = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients. What is in flight is waited for and dropped, on every rank alike."""
        try:
            if self._reducer is not None:
                self._reducer.drop()
        finally:
            self._optimizer.zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of passes. Raises ArgumentError between backward() and step()."""
        passes = _passes(passes)
        if self._reducer is not None:
            self._reducer.set_passes(passes)

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state, as it is without a wrapper."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the wrapped optimizer's state. Gradients under way are dropped."""
        if self._reducer is not None:
            self._reducer.drop()
        self._optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group whose gradients are reduced too. All ranks must do so."""
        known = {id(param) for group in self.param_groups for param in group["params"]}
        self._optimizer.add_param_group(param_group)
        if self._reducer is not None:
            named = [n for n in name_gradients(self._optimizer, None) if id(n[1]) not in known]
            self._reducer.extend(self._plan(named, self._reducer.buckets()))

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
        """Refuse to be copied or pickled."""
        raise TypeError("DistributedOptimizer can't be copied or pickled yet; use state_dict()")

    def _plan(self, named: list[Named], start: int) -> list[Bucket]:
        config = session().runtime.config
        policy = FixedBuckets(config.bucket, config.first_bucket)
        return plan_buckets(named, self._reduction, policy, f"optimizer.{self._number}", start)


def _reducing(closure: Closure, reducer: Reducer) -> Closure:
    def reduced() -> Any:
        loss = closure()
        reducer.synchronize()
        return loss

    return reduced


def _step(optimizer: torch.optim.Optimizer, closure: Closure | None) -> Any:
    return optimizer.step() if closure is None else optimizer.step(closure)


def _check(optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ArgumentError(f"a torch.optim.Optimizer is needed, not {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ArgumentError(
            "LBFGS is not supported: its line search branches on values that are local to a rank"
        )


def _passes(passes: int) -> int:
    if not isinstance(passes, int) or passes < 1:
        raise ArgumentError(f"backward_passes_per_step must be 1 or more, not {passes!r}")
    return passes


def _reduction(
    op: ReduceOp, compression: Compressor, predivide: float, process_set: ProcessSet
) -> Signature:
    """Return what all buckets have in common."""
    codec = codec_of(compression)
    if codec is None:
        raise ArgumentError("DistributedOptimizer does not take compressors of one's own")
    if not isinstance(op, ReduceOp):
        raise ArgumentError(f"op must be Average or Sum, not {op!r}")
    process_set.id()  # raises if init() does not know it
    predivide = float(predivide)
    if not predivide > 0:
        raise ArgumentError(f"gradient_predivide_factor must be positive, not {predivide!r}")
    if predivide == 1.0:
        return Signature(Kind.ALLREDUCE, (), op, codec=codec, fusable=False)
    if op is not Average:
        raise ArgumentError("gradient_predivide_factor needs op=Average")
    size = process_set.size()
    scales = (1 / predivide, predivide / size)
    return Signature(Kind.ALLREDUCE, (), ReduceOp.SUM, *scales, codec, fusable=False)


def _register(wrapper: DistributedOptimizer) -> int:
    """Return the wrapper's number in this session. Raises ArgumentError if one is alive already."""
    params = {id(param) for group in wrapper.param_groups for param in group["params"]}
    wrapped = session().wrapped
    for number, reference in enumerate(wrapped):
        other = reference()
        if other is None:
            continue
        if any(id(param) in params for group in other.param_groups for param in group["params"]):
            raise ArgumentError(
                f"a parameter of this optimizer is in DistributedOptimizer {number} already, and "
                "would be reduced twice; delete that one first"
            )
    wrapped.append(weakref.ref(wrapper))
    return len(wrapped) - 1
