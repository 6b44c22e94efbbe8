"""What each word of the native vocabulary becomes: LLVM instructions, as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from arrayfn.backends.cpu.native import LANES, LINE_BYTES

_LANES: Final = f"<{LANES} x double>"
_FUNCTIONS: Final = (
    "declare double @llvm.sqrt.f64(double)",
    f"declare {_LANES} @llvm.sqrt.v{LANES}f64({_LANES})",
    *(
        declaration
        for kind, line, name in (
            ("double", "<8 x double>", "v8f64"),
            ("float", "<16 x float>", "v16f32"),
        )
        for declaration in (
            f"declare {kind} @llvm.vector.reduce.fadd.{name}({kind}, {line})",
            f"declare {line} @llvm.fmuladd.{name}({line}, {line}, {line})",
        )
    ),
)
COLUMNS: Final = 4  # of ``columns_products``
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


class Routine(Protocol):
    """The routine that is compiled. Values are texts of i64 operands."""

    architecture: str
    terminated: bool

    def emit(self, instruction: str) -> None:
        """Append an instruction."""

    def value_of(self, instruction: str) -> str:
        """Append an instruction with a result; its operand."""
        ...

    def pointer(self, address: str) -> str:
        """An address as a pointer."""
        ...

    def fresh(self) -> str:
        """A new operand's name."""
        ...

    def label(self) -> str:
        """A new block's label."""
        ...

    def begin(self, label: str) -> None:
        """Start a block, falling into it where the last one is open."""


def declarations(architecture: str) -> tuple[str, ...]:
    """What a module declares so that its routines can use the vocabulary."""
    if architecture in _PAUSE_DECLARATION:
        return *_FUNCTIONS, _PAUSE_DECLARATION[architecture]
    return _FUNCTIONS


# Memory.


def _load(r: Routine, kind: str, extend: str, address: str) -> str:
    """A load of a narrower integer."""
    narrow = r.value_of(f"load {kind}, ptr {r.pointer(address)}")
    return r.value_of(f"{extend} {kind} {narrow} to i64")


def _store_narrow(r: Routine, kind: str, address: str, value: str) -> str:
    """A store of a narrower integer."""
    narrow = r.value_of(f"trunc i64 {value} to {kind}")
    r.emit(f"store {kind} {narrow}, ptr {r.pointer(address)}")
    return "0"


def _store(r: Routine, address: str, value: str, atomic: bool = False) -> str:
    """A store of an i64."""
    pointer = r.pointer(address)
    if atomic:
        r.emit(f"store atomic i64 {value}, ptr {pointer} release, align 8")
    else:
        r.emit(f"store i64 {value}, ptr {pointer}")
    return "0"


def _exchange_if(r: Routine, address: str, expected: str, value: str) -> str:
    """A compare-and-exchange."""
    pair = r.value_of(
        f"cmpxchg ptr {r.pointer(address)}, i64 {expected}, i64 {value} seq_cst seq_cst"
    )
    return r.value_of(f"extractvalue {{ i64, i1 }} {pair}, 0")


# Floating-point numbers.


def _narrow(r: Routine, bits: str) -> str:
    """f64 bits to f32 bits."""
    wide = r.value_of(f"bitcast i64 {bits} to double")
    single = r.value_of(f"fptrunc double {wide} to float")
    word = r.value_of(f"bitcast float {single} to i32")
    return r.value_of(f"zext i32 {word} to i64")


def _widen(r: Routine, bits: str) -> str:
    """f32 bits to f64 bits."""
    word = r.value_of(f"trunc i64 {bits} to i32")
    single = r.value_of(f"bitcast i32 {word} to float")
    wide = r.value_of(f"fpext float {single} to double")
    return r.value_of(f"bitcast double {wide} to i64")


def _float_of(r: Routine, value: str) -> str:
    """An integer to f64 bits."""
    wide = r.value_of(f"sitofp i64 {value} to double")
    return r.value_of(f"bitcast double {wide} to i64")


def _real(r: Routine, operation: str, *bits: str) -> str:
    """An operation of f64 bits whose result is an f64."""
    operands = [r.value_of(f"bitcast i64 {b} to double") for b in bits]
    if operation == "sqrt":
        made = r.value_of(f"call double @llvm.sqrt.f64(double {operands[0]})")
    else:
        made = r.value_of(f"{operation} double {', '.join(operands)}")
    return r.value_of(f"bitcast double {made} to i64")


def _less(r: Routine, a: str, b: str) -> str:
    """A comparison of f64 bits."""
    left, right = (r.value_of(f"bitcast i64 {x} to double") for x in (a, b))
    condition = r.value_of(f"fcmp olt double {left}, {right}")
    return r.value_of(f"zext i1 {condition} to i64")


def _lanes(r: Routine, operation: str, *addresses: str) -> str:
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


def _columns_products(
    r: Routine,
    kind: str,
    y: str,
    x: str,
    a: str,
    step: str,
    length: str,
    factors: str,
    totals: str,
) -> str:
    """A loop over lines whose sums stay in registers."""
    size = 8 if kind == "double" else 4
    many = LINE_BYTES // size
    line = f"<{many} x {kind}>"
    name = f"v{many}f{8 * size}"

    def line_at(address: str, offset: str) -> str:
        place = r.pointer(r.value_of(f"add i64 {address}, {offset}"))
        return r.value_of(f"load {line}, ptr {place}, align {size}")

    def number_at(address: str, number: int) -> tuple[str, str]:
        place = r.pointer(r.value_of(f"add i64 {address}, {size * number}"))
        return place, r.value_of(f"load {kind}, ptr {place}, align {size}")

    def multiply_add(one: str, other: str, sum: str) -> str:
        operands = ", ".join(f"{line} {value}" for value in (one, other, sum))
        return r.value_of(f"call {line} @llvm.fmuladd.{name}({operands})")

    columns, spread = [a], []
    for number in range(COLUMNS):
        columns.append(r.value_of(f"add i64 {columns[-1]}, {step}"))
        _, factor = number_at(factors, number)
        first = r.value_of(f"insertelement {line} poison, {kind} {factor}, i32 0")
        zeros = f"<{many} x i32> zeroinitializer"
        spread.append(
            r.value_of(f"shufflevector {line} {first}, {line} poison, {zeros}")
        )
    before, inside, after = r.label(), r.label(), r.label()
    r.begin(before)
    some = r.value_of(f"icmp sgt i64 {length}, 0")
    r.emit(f"br i1 {some}, label %{inside}, label %{after}")
    r.terminated = True
    r.begin(inside)
    place, following = r.fresh(), r.fresh()
    sums, added = ([r.fresh() for _ in range(COLUMNS)] for _ in range(2))
    r.emit(f"{place} = phi i64 [ 0, %{before} ], [ {following}, %{inside} ]")
    for old, new in zip(sums, added, strict=True):
        start = f"[ zeroinitializer, %{before} ]"
        r.emit(f"{old} = phi {line} {start}, [ {new}, %{inside} ]")
    total, across = line_at(y, place), line_at(x, place)
    for number in range(COLUMNS):
        given = line_at(columns[number], place)
        total = multiply_add(given, spread[number], total)
        new = multiply_add(given, across, sums[number])
        r.emit(f"{added[number]} = bitcast {line} {new} to {line}")
    target = r.pointer(r.value_of(f"add i64 {y}, {place}"))
    r.emit(f"store {line} {total}, ptr {target}, align {size}")
    r.emit(f"{following} = add i64 {place}, {LINE_BYTES}")
    more = r.value_of(f"icmp slt i64 {following}, {length}")
    r.emit(f"br i1 {more}, label %{inside}, label %{after}")
    r.terminated = True
    r.begin(after)
    for number in range(COLUMNS):
        start = f"[ zeroinitializer, %{before} ]"
        sums[number] = r.fresh()
        r.emit(f"{sums[number]} = phi {line} {start}, [ {added[number]}, %{inside} ]")
    for number in range(COLUMNS):
        target, old = number_at(totals, number)
        reduced = r.value_of(
            f"call reassoc {kind} @llvm.vector.reduce.fadd.{name}"
            f"({kind} {old}, {line} {sums[number]})"
        )
        r.emit(f"store {kind} {reduced}, ptr {target}, align {size}")
    return "0"


# Calls and hints.


def _pause(r: Routine) -> str:
    """A hint to the core; nothing where the architecture has none."""
    if r.architecture in _PAUSE:
        r.emit(_PAUSE[r.architecture])
    return "0"


def _call(r: Routine, address: str, *values: str) -> str:
    """A call through a pointer."""
    operands = ", ".join(f"i64 {value}" for value in values)
    return r.value_of(f"call i64 {r.pointer(address)}({operands})")


OPERATIONS: Final[dict[str, Callable[..., str]]] = {
    "load": lambda r, a: r.value_of(f"load i64, ptr {r.pointer(a)}"),
    "load_i32": lambda r, a: _load(r, "i32", "sext", a),
    "load_u8": lambda r, a: _load(r, "i8", "zext", a),
    "store": _store,
    "store_i32": lambda r, a, v: _store_narrow(r, "i32", a, v),
    "store_u8": lambda r, a, v: _store_narrow(r, "i8", a, v),
    "atomic_load": lambda r, a: r.value_of(
        f"load atomic i64, ptr {r.pointer(a)} acquire, align 8"
    ),
    "atomic_store": lambda r, a, v: _store(r, a, v, atomic=True),
    "atomic_add": lambda r, a, v: r.value_of(
        f"atomicrmw add ptr {r.pointer(a)}, i64 {v} seq_cst"
    ),
    "atomic_exchange_if": _exchange_if,
    "pause": _pause,
    "narrow_f64": _narrow,
    "widen_f32": _widen,
    "float_of": _float_of,
    "add_f64": lambda r, a, b: _real(r, "fadd", a, b),
    "mul_f64": lambda r, a, b: _real(r, "fmul", a, b),
    "sub_f64": lambda r, a, b: _real(r, "fsub", a, b),
    "div_f64": lambda r, a, b: _real(r, "fdiv", a, b),
    "sqrt_f64": lambda r, a: _real(r, "sqrt", a),
    "less_f64": _less,
    "lanes_add_product": lambda r, y, a, b: _lanes(r, "fadd", y, a, b),
    "lanes_sub_product": lambda r, y, a, b: _lanes(r, "fsub", y, a, b),
    "lanes_mul": lambda r, y, a: _lanes(r, "fmul", y, a),
    "lanes_div": lambda r, y, a: _lanes(r, "fdiv", y, a),
    "lanes_sqrt": lambda r, y: _lanes(r, "sqrt", y),
    "columns_products_f64": lambda r, *values: _columns_products(r, "double", *values),
    "columns_products_f32": lambda r, *values: _columns_products(r, "float", *values),
    "call": _call,
}
