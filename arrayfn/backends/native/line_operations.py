"""The native vocabulary's operations of several numbers at once, as LLVM instructions.

Lanes are a few f64 in a row, lines what a cache's line holds of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from arrayfn.backends.native import LANES, LINE_BYTES
from arrayfn.backends.native.emitter import Emitter

_LANES: Final = f"<{LANES} x double>"
_LINE: Final = f"<{LINE_BYTES // 8} x double>"
DECLARATIONS: Final = (
    f"declare {_LANES} @llvm.sqrt.v{LANES}f64({_LANES})",
    f"declare {_LINE} @llvm.fabs.v8f64({_LINE})",
    *(
        declaration
        for kind, line, name in (
            ("double", _LANES, f"v{LANES}f64"),
            ("double", _LINE, "v8f64"),
            ("float", "<16 x float>", "v16f32"),
        )
        for declaration in (
            f"declare {kind} @llvm.vector.reduce.fadd.{name}({kind}, {line})",
            f"declare {line} @llvm.fmuladd.{name}({line}, {line}, {line})",
        )
    ),
)
COLUMNS: Final = 4  # of ``columns_products``
SUMS: Final = 3  # of ``secular_sums``


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


def _columns_products(
    r: Emitter,
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
        spread.append(_spread(r, line, kind, many, factor))

    def of_line(place: str, sums: list[str]) -> list[str]:
        total, across = line_at(y, place), line_at(x, place)
        added: list[str] = []
        for number in range(COLUMNS):
            given = line_at(columns[number], place)
            total = multiply_add(given, spread[number], total)
            added.append(multiply_add(given, across, sums[number]))
        target = r.pointer(r.value_of(f"add i64 {y}, {place}"))
        r.emit(f"store {line} {total}, ptr {target}, align {size}")
        return added

    sums = _over_lines(r, line, length, COLUMNS, of_line)
    for number in range(COLUMNS):
        target, old = number_at(totals, number)
        reduced = r.value_of(
            f"call reassoc {kind} @llvm.vector.reduce.fadd.{name}"
            f"({kind} {old}, {line} {sums[number]})"
        )
        r.emit(f"store {kind} {reduced}, ptr {target}, align {size}")
    return "0"


def _spread(r: Emitter, line: str, kind: str, many: int, number: str) -> str:
    """A line of equal numbers."""
    first = r.value_of(f"insertelement {line} poison, {kind} {number}, i32 0")
    zeros = f"<{many} x i32> zeroinitializer"
    return r.value_of(f"shufflevector {line} {first}, {line} poison, {zeros}")


def _over_lines(
    r: Emitter,
    line: str,
    length: str,
    count: int,
    of_line: Callable[[str, list[str]], list[str]],
    bytes: int = LINE_BYTES,
) -> list[str]:
    """A loop over ``length`` bytes, by ``bytes``; lines that are its ``count`` sums.

    ``of_line`` is given an offset and the sums before it, and gives those after it.
    """
    before, inside, after = r.label(), r.label(), r.label()
    r.begin(before)
    some = r.value_of(f"icmp sgt i64 {length}, 0")
    r.emit(f"br i1 {some}, label %{inside}, label %{after}")
    r.terminated = True
    r.begin(inside)
    place, following = r.fresh(), r.fresh()
    sums, added = ([r.fresh() for _ in range(count)] for _ in range(2))
    r.emit(f"{place} = phi i64 [ 0, %{before} ], [ {following}, %{inside} ]")
    for old, new in zip(sums, added, strict=True):
        start = f"[ zeroinitializer, %{before} ]"
        r.emit(f"{old} = phi {line} {start}, [ {new}, %{inside} ]")
    for new, made in zip(added, of_line(place, sums), strict=True):
        r.emit(f"{new} = bitcast {line} {made} to {line}")
    r.emit(f"{following} = add i64 {place}, {bytes}")
    more = r.value_of(f"icmp slt i64 {following}, {length}")
    r.emit(f"br i1 {more}, label %{inside}, label %{after}")
    r.terminated = True
    r.begin(after)
    results: list[str] = []
    for new in added:
        start = f"[ zeroinitializer, %{before} ]"
        results.append(r.value_of(f"phi {line} {start}, [ {new}, %{inside} ]"))
    return results


def _line_at(r: Emitter, address: str, offset: str) -> tuple[str, str]:
    """The place of a line of f64, and what it has."""
    place = r.pointer(r.value_of(f"add i64 {address}, {offset}"))
    return place, r.value_of(f"load {_LINE}, ptr {place}, align 8")


def _real_line(r: Emitter, bits: str) -> str:
    """A line of the f64 with these bits."""
    number = r.value_of(f"bitcast i64 {bits} to double")
    return _spread(r, _LINE, "double", 8, number)


def _line_sum(r: Emitter, line: str) -> str:
    """The sum of a line of f64."""
    return r.value_of(
        "call reassoc double @llvm.vector.reduce.fadd.v8f64"
        f"(double 0.0, {_LINE} {line})"
    )


def _multiply_add(r: Emitter, one: str, other: str, sum: str) -> str:
    """Of lines of f64."""
    operands = ", ".join(f"{_LINE} {value}" for value in (one, other, sum))
    return r.value_of(f"call {_LINE} @llvm.fmuladd.v8f64({operands})")


def _store_sums(r: Emitter, lines: list[str], target: str) -> str:
    """Write the sums of lines of f64."""
    for number, line in enumerate(lines):
        place = r.pointer(r.value_of(f"add i64 {target}, {8 * number}"))
        r.emit(f"store double {_line_sum(r, line)}, ptr {place}, align 8")
    return "0"


def _columns_update_products(
    r: Emitter,
    a: str,
    step: str,
    length: str,
    v: str,
    w: str,
    x: str,
    y: str,
    factors: str,
    totals: str,
) -> str:
    """A loop over lanes of four columns: all that it adds up stays in registers."""
    columns = [a]
    for _ in range(COLUMNS - 1):
        columns.append(r.value_of(f"add i64 {columns[-1]}, {step}"))
    spread: list[str] = []
    for number in range(3 * COLUMNS):
        place = r.pointer(r.value_of(f"add i64 {factors}, {8 * number}"))
        factor = r.value_of(f"load double, ptr {place}, align 8")
        if number < 2 * COLUMNS:
            factor = r.value_of(f"fneg double {factor}")
        spread.append(_spread(r, _LANES, "double", LANES, factor))

    def lanes_at(address: str, offset: str) -> tuple[str, str]:
        place = r.pointer(r.value_of(f"add i64 {address}, {offset}"))
        return place, r.value_of(f"load {_LANES}, ptr {place}, align 8")

    def multiply_add(one: str, other: str, sum: str) -> str:
        operands = ", ".join(f"{_LANES} {value}" for value in (one, other, sum))
        return r.value_of(f"call {_LANES} @llvm.fmuladd.v{LANES}f64({operands})")

    def of_lanes(place: str, sums: list[str]) -> list[str]:
        (_, first), (_, second), (_, across), (made, total) = (
            lanes_at(address, place) for address in (v, w, x, y)
        )
        added: list[str] = []
        for number, column in enumerate(columns):
            target, given = lanes_at(column, place)
            given = multiply_add(first, spread[number], given)
            given = multiply_add(second, spread[COLUMNS + number], given)
            r.emit(f"store {_LANES} {given}, ptr {target}, align 8")
            total = multiply_add(given, spread[2 * COLUMNS + number], total)
            added.append(multiply_add(given, across, sums[number]))
        r.emit(f"store {_LANES} {total}, ptr {made}, align 8")
        return added

    sums = _over_lines(r, _LANES, length, COLUMNS, of_lanes, 8 * LANES)
    for number, lanes in enumerate(sums):
        place = r.pointer(r.value_of(f"add i64 {totals}, {8 * number}"))
        old = r.value_of(f"load double, ptr {place}, align 8")
        reduced = r.value_of(
            f"call reassoc double @llvm.vector.reduce.fadd.v{LANES}f64"
            f"(double {old}, {_LANES} {lanes})"
        )
        r.emit(f"store double {reduced}, ptr {place}, align 8")
    return "0"


def _lines_product(r: Emitter, x: str, y: str, length: str) -> str:
    """A loop over lines, and their sum."""

    def of_line(place: str, sums: list[str]) -> list[str]:
        (_, one), (_, other) = (_line_at(r, address, place) for address in (x, y))
        return [_multiply_add(r, one, other, sums[0])]

    (total,) = _over_lines(r, _LINE, length, 1, of_line)
    return r.value_of(f"bitcast double {_line_sum(r, total)} to i64")


def _lines_rotate(
    r: Emitter, x: str, y: str, length: str, cosine: str, sine: str
) -> str:
    """A loop over pairs of lines."""
    c, s = _real_line(r, cosine), _real_line(r, sine)

    def of_line(place: str, sums: list[str]) -> list[str]:
        first, one = _line_at(r, x, place)
        second, other = _line_at(r, y, place)
        less = r.value_of(f"fmul {_LINE} {s}, {other}")
        less = r.value_of(f"fneg {_LINE} {less}")
        more = r.value_of(f"fmul {_LINE} {c}, {other}")
        turned = _multiply_add(r, c, one, less)
        r.emit(f"store {_LINE} {turned}, ptr {first}, align 8")
        turned = _multiply_add(r, s, one, more)
        r.emit(f"store {_LINE} {turned}, ptr {second}, align 8")
        return []

    _over_lines(r, _LINE, length, 0, of_line)
    return "0"


def _secular_sums(
    r: Emitter,
    poles: str,
    weights: str,
    length: str,
    origin: str,
    shift: str,
    sums: str,
    squares: bool = False,
) -> str:
    """A loop over lines: terms, and their sums."""
    start, less = _real_line(r, origin), _real_line(r, shift)

    def of_line(place: str, sums: list[str]) -> list[str]:
        (_, pole), (_, weight) = (
            _line_at(r, address, place) for address in (poles, weights)
        )
        gap = r.value_of(f"fsub {_LINE} {pole}, {start}")
        if squares:
            both = r.value_of(f"fadd {_LINE} {pole}, {start}")
            gap = r.value_of(f"fmul {_LINE} {gap}, {both}")
        pole = r.value_of(f"fsub {_LINE} {gap}, {less}")
        term = r.value_of(f"fdiv {_LINE} {weight}, {pole}")
        product = r.value_of(f"fmul {_LINE} {term}, {weight}")
        square = r.value_of(f"fmul {_LINE} {term}, {term}")
        size = r.value_of(f"call {_LINE} @llvm.fabs.v8f64({_LINE} {product})")
        return [
            r.value_of(f"fadd {_LINE} {old}, {new}")
            for old, new in zip(sums, (product, square, size), strict=True)
        ]

    return _store_sums(r, _over_lines(r, _LINE, length, SUMS, of_line), sums)


OPERATIONS: Final[dict[str, Callable[..., str]]] = {
    "lanes_add_product": lambda r, y, a, b: _lanes(r, "fadd", y, a, b),
    "lanes_sub_product": lambda r, y, a, b: _lanes(r, "fsub", y, a, b),
    "lanes_mul": lambda r, y, a: _lanes(r, "fmul", y, a),
    "lanes_div": lambda r, y, a: _lanes(r, "fdiv", y, a),
    "lanes_sqrt": lambda r, y: _lanes(r, "sqrt", y),
    "columns_products_f64": lambda r, *values: _columns_products(r, "double", *values),
    "columns_products_f32": lambda r, *values: _columns_products(r, "float", *values),
    "columns_update_products": _columns_update_products,
    "lines_product": _lines_product,
    "lines_rotate": _lines_rotate,
    "secular_sums": _secular_sums,
    "secular_square_sums": lambda r, *values: _secular_sums(r, *values, squares=True),
}
