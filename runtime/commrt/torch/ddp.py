"""Lets torch's DistributedDataParallel average gradients over commrt."""

# Annotations are not postponed: DDP compares those of a hook with the types themselves.

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch.autograd import Variable
from torch.futures import Future

from commrt.api import global_process_set, session
from commrt.engine.handle import Handle
from commrt.errors import ArgumentError, InitError
from commrt.process_sets import ProcessSet
from commrt.session import Session
from commrt.torch.compression import Compression, Compressor, Undo, codec_of, compress

Hook = Callable[[object, Any], Future[torch.Tensor]]
"""What `register_comm_hook` takes."""


def ddp_hook(
    compression: type[Compressor] | Compressor = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Hook:
    """Return a hook by which DistributedDataParallel averages its gradients over the process set.

    Give it to `model.register_comm_hook(state=None, hook=…)`, a new one to each model; all ranks of
    the set make theirs in the same order. It serves until `shutdown()`. DDP goes on to need its own
    process group, of the same ranks: it sends parameters and buffers there, first of all rank 0's.

    Buckets are reduced in place, as `ddp.N/bucket.I/ELEMENTS`, N the number of the hook in its set;
    a compressor of one's own makes copies. The hook does not block, `backward()` waits. It raises
    CommError if a bucket failed: gradients are not whole then. DDP can go on where the runtime can.

    Does not block. Raises InitError; ArgumentError for what is no compression, or no set of ours.
    Thread safety: one thread at a time for each hook.
    """
    reducer = _Reducer(compression, process_set)

    def commrt_hook(
        state: object,
        bucket: torch.distributed.GradBucket,  # type: ignore[name-defined]
    ) -> Future[torch.Tensor]:
        return reducer.start(bucket.index(), bucket.buffer())

    return commrt_hook


class _Reducer:
    """Averages the buckets of one model. Thread safety: one thread at a time.

    Futures are completed in a thread of its own, which ends with it or with the session: what
    torch does with them, and a compressor of the user's, must not keep the engine.
    """

    def __init__(self, compression: type[Compressor] | Compressor, process_set: ProcessSet) -> None:
        codec_of(compression)  # raises ArgumentError
        current = session()
        _check_set(process_set)
        self._compression = compression
        self._process_set = process_set
        self._name = f"ddp.{current.number(f'ddp.{process_set.id()}')}"
        self._session = weakref.ref(current)
        self._helper = ThreadPoolExecutor(1, "commrt ddp")
        self._helper.submit(int)  # its thread starts here, not in the engine
        weakref.finalize(current, _dismiss, weakref.ref(self._helper)).atexit = False

    def start(self, index: int, buffer: torch.Tensor) -> Future[torch.Tensor]:
        """Submit a bucket, shape (n,). Never raises: the other buckets must reach all ranks too."""
        future: Future[torch.Tensor] = Future()
        name = f"{self._name}/bucket.{index}/{buffer.numel()}"
        try:
            handle, finish = self._submit(name, buffer)
        except Exception as exc:  # a compressor of the user's may raise anything
            self._report(name, exc)
            _fail(future, exc)
            return future
        handle.add_done_callback(partial(_hand_over, self._helper, finish, future))
        if torch._C._current_graph_task_id() != -1:
            # DDP would wait in C++, where the engine does not see it, nor it the engine's end.
            Variable._execution_engine.queue_callback(partial(_wait, handle))
        return future

    def _submit(self, name: str, buffer: torch.Tensor) -> tuple[Handle, Callable[[], torch.Tensor]]:
        """Start to average; return what makes the bucket's result once that has ended."""
        current = self._current()
        with torch.no_grad():
            (sent,), codec, undo = compress(self._compression, [buffer])
        handle = current.allreduce_async(
            sent, name, compression=codec, process_set=self._process_set, inplace=sent is buffer
        )
        return handle, partial(_result, handle, undo, buffer)

    def _current(self) -> Session:
        current = session()
        if current is not self._session():
            raise InitError(f"{self._name} was made under another init(); make a hook after it")
        return current

    def _report(self, name: str, error: Exception) -> None:
        """Let the other ranks fail with us."""
        current, id = self._session(), self._process_set.process_set_id
        if current is not None and id is not None:
            current.runtime.report(id, name, f"{type(error).__name__}: {error}")


class _Failure:
    """An error as a future's value. DDP's C++ knows none of Python's errors in a future.

    But it raises what `str()` of a value raises, when it is to say that the value is no tensor.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error.with_traceback(None)


def _check_set(process_set: ProcessSet) -> None:
    if not isinstance(process_set, ProcessSet):
        raise ArgumentError(f"ddp_hook: a ProcessSet is needed, not {process_set!r}")
    if not process_set.included():
        raise ArgumentError(f"ddp_hook: this rank is not in {process_set!r}")


def _wait(handle: Handle) -> None:
    handle.exception()


def _hand_over(
    helper: ThreadPoolExecutor, finish: Callable[[], torch.Tensor], future: Future[torch.Tensor],
    _: Handle,
) -> None:  # fmt: skip
    """Let the helper complete a future. Called by the engine."""
    try:
        helper.submit(_complete, finish, future)
    except RuntimeError:  # the helper has ended with the session or with the interpreter
        _complete(finish, future)


def _complete(finish: Callable[[], torch.Tensor], future: Future[torch.Tensor]) -> None:
    try:
        result = finish()
    except Exception as exc:  # last line of defence: whoever waits must get something
        _fail(future, exc)
    else:
        future.set_result(result)


def _result(handle: Handle, undo: Undo, buffer: torch.Tensor) -> torch.Tensor:
    """Return a bucket's memory with the result in it, as DDP wants it."""
    with torch.no_grad():
        (mean,) = undo([handle.wait()])
        return buffer if mean is buffer else buffer.copy_(mean.reshape(buffer.shape))


def _fail(future: Future[Any], error: Exception) -> None:
    """Complete a future with an error, for Python and for C++."""
    future._set_unwrap_func(str)  # which raises it
    future.set_result(_Failure(error))


def _dismiss(helper: "weakref.ref[ThreadPoolExecutor]") -> None:
    alive = helper()
    if alive is not None:
        alive.shutdown(wait=False)
