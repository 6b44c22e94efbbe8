"""What each word of the native vocabulary becomes: LLVM instructions, as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from arrayfn.backends.native import LANES
from arrayfn.backends.native.emitter import Emitter

_LANES: Final = f"<{LANES} x double>"
_FUNCTIONS: Final = (
    "declare double @llvm.sqrt.f64(double)",
    f"declare {_LANES} @llvm.sqrt.v{LANES}f64({_LANES})",
    "declare i64 @llvm.readcyclecounter()",
    "declare i64 @llvm.readsteadycounter()",
)
_CYCLES_A_TICK_BITS: Final = 5  # of an ARM timer, of 24 MHz to 1 GHz
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
    """What a module declares so that its routines can use the vocabulary."""
    if architecture in _PAUSE_DECLARATION:
        return *_FUNCTIONS, _PAUSE_DECLARATION[architecture]
    return _FUNCTIONS


# Memory.


def _load_i32(r: Emitter, address: str) -> str:
    """A load of a narrower integer."""
    narrow = r.value_of(f"load i32, ptr {r.pointer(address)}")
    return r.value_of(f"sext i32 {narrow} to i64")


def _store_narrow(r: Emitter, kind: str, address: str, value: str) -> str:
    """A store of a narrower integer."""
    narrow = r.value_of(f"trunc i64 {value} to {kind}")
    r.emit(f"store {kind} {narrow}, ptr {r.pointer(address)}")
    return "0"


def _store(r: Emitter, address: str, value: str) -> str:
    """A store of an i64."""
    r.emit(f"store i64 {value}, ptr {r.pointer(address)}")
    return "0"


def _atomic_store(r: Emitter, pointer: str, value: str) -> str:
    """A store that releases what was written before."""
    r.emit(f"store atomic i64 {value}, ptr {pointer} release, align 8")
    return "0"


def _exchange_if(r: Emitter, pointer: str, expected: str, value: str) -> str:
    """A compare-and-exchange."""
    pair = r.value_of(
        f"cmpxchg ptr {pointer}, i64 {expected}, i64 {value} seq_cst seq_cst"
    )
    return r.value_of(f"extractvalue {{ i64, i1 }} {pair}, 0")


# Floating-point numbers.


def _narrow(r: Emitter, bits: str) -> str:
    """f64 bits to f32 bits."""
    wide = r.value_of(f"bitcast i64 {bits} to double")
    single = r.value_of(f"fptrunc double {wide} to float")
    word = r.value_of(f"bitcast float {single} to i32")
    return r.value_of(f"zext i32 {word} to i64")


def _widen(r: Emitter, bits: str) -> str:
    """f32 bits to f64 bits."""
    word = r.value_of(f"trunc i64 {bits} to i32")
    single = r.value_of(f"bitcast i32 {word} to float")
    wide = r.value_of(f"fpext float {single} to double")
    return r.value_of(f"bitcast double {wide} to i64")


def _real(r: Emitter, operation: str, *bits: str) -> str:
    """An operation of f64 bits whose result is an f64."""
    operands = [r.value_of(f"bitcast i64 {b} to double") for b in bits]
    if operation == "sqrt":
        made = r.value_of(f"call double @llvm.sqrt.f64(double {operands[0]})")
    else:
        made = r.value_of(f"{operation} double {', '.join(operands)}")
    return r.value_of(f"bitcast double {made} to i64")


def _less(r: Emitter, a: str, b: str) -> str:
    """A comparison of f64 bits."""
    left, right = (r.value_of(f"bitcast i64 {x} to double") for x in (a, b))
    condition = r.value_of(f"fcmp olt double {left}, {right}")
    return r.value_of(f"zext i1 {condition} to i64")


def _lanes(r: Emitter, operation: str, *addresses: str) -> str:
    """The lanes at the first address, as they follow from what is at all of them."""
    places = [r.pointer(address) for address in addresses]
    y, *others = (r.value_of(f"load {_LANES}, ptr {p}, align 8") for p in places)
    if operation == "sqrt":
        made = r.value_of(f"call {_LANES} @llvm.sqrt.v{LANES}f64({_LANES} {y})")
    else:
        if len(others) == 2:
            others = [r.value_of(f"fmul {_LANES} {others[0]}, {others[1]}")]
        made = r.value_of(f"{operation} {_LANES} {y}, {others[0]}")
    r.emit(f"store {_LANES} {made}, ptr {places[0]}, align 8")
    return "0"


# Calls and hints.


def _pause(r: Emitter) -> str:
    """A hint to the core; nothing where the architecture has none."""
    if r.architecture in _PAUSE:
        r.emit(_PAUSE[r.architecture])
    return "0"


def _cycles(r: Emitter) -> str:
    """The counter of cycles, where programs may read it; one as fast, about, else."""
    if r.architecture == "x86_64":
        return r.value_of("call i64 @llvm.readcyclecounter()")
    steady = r.value_of("call i64 @llvm.readsteadycounter()")
    return r.value_of(f"shl i64 {steady}, {_CYCLES_A_TICK_BITS}")


def _call(r: Emitter, address: str, *values: str) -> str:
    """A call through a pointer."""
    operands = ", ".join(f"i64 {value}" for value in values)
    return r.value_of(f"call i64 {r.pointer(address)}({operands})")


OPERATIONS: Final[dict[str, Callable[..., str]]] = {
    "load": lambda r, a: r.value_of(f"load i64, ptr {r.pointer(a)}"),
    "load_i32": _load_i32,
    "store": _store,
    "store_i32": lambda r, a, v: _store_narrow(r, "i32", a, v),
    "store_u8": lambda r, a, v: _store_narrow(r, "i8", a, v),
    "pause": _pause,
    "cycles": _cycles,
    "narrow_f64": _narrow,
    "widen_f32": _widen,
    "sub_f64": lambda r, a, b: _real(r, "fsub", a, b),
    "div_f64": lambda r, a, b: _real(r, "fdiv", a, b),
    "sqrt_f64": lambda r, a: _real(r, "sqrt", a),
    "less_f64": _less,
    "lanes_add_product": lambda r, y, a, b: _lanes(r, "fadd", y, a, b),
    "lanes_sub_product": lambda r, y, a, b: _lanes(r, "fsub", y, a, b),
    "lanes_mul": lambda r, y, a: _lanes(r, "fmul", y, a),
    "lanes_div": lambda r, y, a: _lanes(r, "fdiv", y, a),
    "lanes_sqrt": lambda r, y: _lanes(r, "sqrt", y),
    "call": _call,
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
