"""Words that processes share, read and written past the compiler's and processor's liberties.

An address is an int64. Orders are those of the C11 memory model: what was written before a `store`
is seen by whoever `load`s its value, on x86 and on Arm.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from commrt.kernels.compiler import cgutils, intrinsic, types

_WORD = ir.IntType(64)
_WHOLE = types.int64


def _pointer(b: Any, address: Any) -> Any:
    return b.inttoptr(address, _WORD.as_pointer())


@intrinsic  # type: ignore[untyped-decorator]
def load(_: Any, address: Any) -> Any:
    """Read a word; acquire."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        return b.load_atomic(_pointer(b, args[0]), "acquire", 8)

    return _WHOLE(_WHOLE), generate


@intrinsic  # type: ignore[untyped-decorator]
def store(_: Any, address: Any, value: Any) -> Any:
    """Write a word; release."""

    def generate(target: Any, b: Any, __: Any, args: Any) -> Any:
        b.store_atomic(args[1], _pointer(b, args[0]), "release", 8)
        return target.get_dummy_value()

    return types.void(_WHOLE, _WHOLE), generate


@intrinsic  # type: ignore[untyped-decorator]
def swap(_: Any, address: Any, value: Any) -> Any:
    """Write a word and return what it was; sequentially consistent."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        return b.atomic_rmw("xchg", _pointer(b, args[0]), args[1], "seq_cst")

    return _WHOLE(_WHOLE, _WHOLE), generate


@intrinsic  # type: ignore[untyped-decorator]
def fence(_: Any) -> Any:
    """Let no later load come before an earlier store."""

    def generate(target: Any, b: Any, __: Any, ___: Any) -> Any:
        b.fence("seq_cst")
        return target.get_dummy_value()

    return types.void(), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy(_: Any, target: Any, source: Any, nbytes: Any) -> Any:
    """Copy bytes; the two places do not overlap."""

    def generate(context: Any, b: Any, __: Any, args: Any) -> Any:
        to, of, n = args
        byte = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(b, b.inttoptr(to, byte), b.inttoptr(of, byte), n, 1)
        return context.get_dummy_value()

    return types.void(_WHOLE, _WHOLE, _WHOLE), generate


write: Any = types.ExternalFunction("write", types.int64(types.int32, types.int64, types.int64))
"""The system's `write`: descriptor, address, bytes."""
