"""The LLVM instructions, as text, of each function of the native vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from arrayfn.backends.native.emitter import Emitter

_FUNCTIONS: Final = (
    "declare i64 @llvm.readcyclecounter()",
    "declare i64 @llvm.readsteadycounter()",
)
_CYCLES_A_TICK_BITS: Final = 5
"""Log2 of the cycles counted for a tick of an ARM timer, which runs at 24 MHz to 1 GHz.
"""
_PAUSE: Final = {
    "x86_64": "call void @llvm.x86.sse2.pause()",
    "aarch64": "call void @llvm.aarch64.hint(i32 1)",
    "arm64": "call void @llvm.aarch64.hint(i32 1)",
}
_PAUSE_DECLARATION: Final = {
    "x86_64": "declare void @llvm.x86.sse2.pause()",
    "aarch64": "declare void @llvm.aarch64.hint(i32)",
    "arm64": "declare void @llvm.aarch64.hint(i32)",
}


def declarations(architecture: str) -> tuple[str, ...]:
    """Return the LLVM declarations that the vocabulary's instructions need.

    ``architecture`` is LLVM's name of the processor architecture, such as "x86_64".
    """
    if architecture in _PAUSE_DECLARATION:
        return *_FUNCTIONS, _PAUSE_DECLARATION[architecture]
    return _FUNCTIONS


def _atomic_store(r: Emitter, pointer: str, value: str) -> str:
    """Emit an atomic store of ``value`` to ``pointer``, with release ordering.

    Returns "0", the operand of a call that has no result.
    """
    r.emit(f"store atomic i64 {value}, ptr {pointer} release, align 8")
    return "0"


def _exchange_if(r: Emitter, pointer: str, expected: str, value: str) -> str:
    """Emit an atomic compare and swap; return the operand of the value before it.

    ``value`` is written if the value at ``pointer`` is ``expected``.
    """
    pair = r.value_of(
        f"cmpxchg ptr {pointer}, i64 {expected}, i64 {value} seq_cst seq_cst"
    )
    return r.value_of(f"extractvalue {{ i64, i1 }} {pair}, 0")


def _pause(r: Emitter) -> str:
    """Emit the hint that this is a spinning loop, if the architecture has one.

    Returns "0", the operand of a call that has no result.
    """
    if r.architecture in _PAUSE:
        r.emit(_PAUSE[r.architecture])
    return "0"


def _cycles(r: Emitter) -> str:
    """Emit a read of the cycle counter on x86; return its operand.

    Elsewhere a timer is read and multiplied by ``2**_CYCLES_A_TICK_BITS``, which gives
    about the rate of a cycle counter.
    """
    if r.architecture == "x86_64":
        return r.value_of("call i64 @llvm.readcyclecounter()")
    steady = r.value_of("call i64 @llvm.readsteadycounter()")
    return r.value_of(f"shl i64 {steady}, {_CYCLES_A_TICK_BITS}")


OPERATIONS: Final[dict[str, Callable[..., str]]] = {
    "pause": _pause,
    "cycles": _cycles,
}

ATOMIC: Final[dict[str, Callable[..., str]]] = {
    "atomic_load": lambda r, p: r.value_of(
        f"load atomic i64, ptr {p} acquire, align 8"
    ),
    "atomic_store": _atomic_store,
    "atomic_add": lambda r, p, v: r.value_of(f"atomicrmw add ptr {p}, i64 {v} seq_cst"),
    "atomic_exchange_if": _exchange_if,
}
"""Operations at a pointer to 64 bits, which several threads may do at once."""
