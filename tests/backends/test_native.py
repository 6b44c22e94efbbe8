"""The language of native routines: what it computes, reads, writes and refuses."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from arrayfn.backends.native import code, compiler, expressions, target
from arrayfn.backends.native.code import native_address, native_addresses
from arrayfn.backends.native.engine import ENGINE

NATIVE = """
from arrayfn.backends.native import native, local

LIMIT = 40

@native
def triangle(n: int, unused: int) -> int:
    total = 0
    for i in range(1, n + 1):
        if i % 2 == 0 and i != 4 or i == 5:
            continue
        if i > LIMIT:
            break
        total += i
    return total

@native
def collatz(n: int, unused: int) -> int:
    words = local(int, 2)
    words[0] = 0
    while not n == 1:
        if n & 1:
            n = 3 * n + 1
        else:
            n = n >> 1
        words[0] += 1
    return words[0]

@native
def negated(n: int, unused: int) -> int:
    return -triangle(n, 0) * (n > 3)
"""


def native_module(path: Any, source: str, name: str = "routines") -> ModuleType:
    path.write_text(source)
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # where structures look names up
    specification.loader.exec_module(module)
    return module


def test_native_routines_compute_as_python_does(tmp_path):
    module = native_module(tmp_path / "routines.py", NATIVE)
    addresses = native_addresses(module.triangle, module.collatz, module.negated)
    prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    triangle, collatz, through = (prototype(address) for address in addresses)
    assert [triangle(n, 0) for n in (0, 3, 50)] == [
        module.triangle(n, 0) for n in (0, 3, 50)
    ]
    assert collatz(27, 0) == 111
    assert [through(n, 0) for n in (3, 4)] == [0, -module.triangle(4, 0)]


def test_equal_texts_of_two_modules_are_two_modules(tmp_path):
    (first, second) = (
        native_module(tmp_path / "same.py", NATIVE, name) for name in ("one", "other")
    )
    addresses = native_addresses(first.triangle, second.triangle)
    assert len(set(addresses)) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    return n / 2", "not an operator"),
        ("    return 'n'", "not an expression"),
        ("    return None", "None is not int"),
        ("    return n.count", "int has no 'count'"),
        ("    return n[0]", "int has no elements"),
        ("    x = None", "x needs a type"),
        ("    return missing", "neither a variable nor an integer constant"),
        ("    return 1.5", "not an expression"),
        ("    with n: pass", "not a statement"),
        ("    for i in n: pass", "not a statement"),
        ("    return len(n)", "is not a native routine"),
    ],
)
def test_what_native_routines_cannot_say_is_an_error_with_its_line(
    tmp_path, body, message
):
    source = f"from arrayfn.backends.native import native\n@native\ndef f(n):\n{body}\n"
    module = native_module(tmp_path / "routines.py", source)
    with pytest.raises(expressions.NativeSyntaxError, match=message) as caught:
        compiler.compile_module(vars(module), target.host().triple)
    assert (caught.value.lineno, caught.value.filename) == (4, module.__file__)


STRUCTURES = """
from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Annotated

from arrayfn.backends.native import (
    CFunction, atomic_add, atomic_exchange_if, atomic_load, cast, local, native,
    size_of,
)
from arrayfn.backends.native.structures import (
    Array, Inline, OwnLines, Ref, Struct, f32, i8, i16, i32, u8, u16, u32, u64,
)

class Color(IntEnum):
    RED = 1
    BLUE = 7

class Point(Struct):
    x: f32
    y: float
    color: u8

class Node(Struct):
    next: Node | None
    points: Annotated[Array[Point], 3]
    origin: Inline[Point]
    value: int

class Numbers(Struct):
    a: i8
    b: u8
    c: i16
    d: u16
    e: i32
    f: u32
    g: u64
    apart: OwnLines[int]
    later: Later
    function: Callable[[i32, float], float]

class Later(Struct):
    count: int

labs = CFunction[[int], int]("labs")
ldexp = CFunction[[float, i32], float]("ldexp")

@native
def total(node: Node | None) -> int:
    sum = 0
    while node is not None:
        for k in range(3):
            point = node.points[k]
            sum += 10 if point.color == Color.BLUE else -point.color
            node.origin.x = point.x
        sum = sum - node.origin.color
        node.value += labs(-3)
        node = node.next
    return sum

@native
def widths(n: Numbers) -> int:
    n.a += 1
    n.b += 1
    n.c -= 1
    n.d -= 1
    n.e = n.e * 2
    n.f = n.f * 2
    n.later.count = atomic_add(n.apart, 5)
    atomic_exchange_if(n.apart, 8, 9)
    sum = 0
    for each in range(n.a, n.a + 2):
        sum += each
    return sum + 100 * atomic_load(n.apart)

@native
def pointers(places: Array[Ref[Point]], count: int) -> float:
    first: Point | None = None
    for k in range(count):
        if places[k].color == Color.RED:
            first = places[k]
            break
    if first is None:
        return places[0].y
    pair = local(Point, 2)
    pair[1].x = first.x
    rest = pair + 1
    if cast(int, rest) - cast(int, pair) != size_of(Point):
        return places[0].y
    return rest[0].x

@native
def indirect(n: Numbers, x: float) -> float:
    n.function = ldexp_of
    return n.function(-3, x)

@native
def ldexp_of(n: int, x: float) -> float:
    return ldexp(x, n)
"""


@pytest.fixture(scope="module")
def routines(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("native") / "structures.py"
    module = native_module(path, STRUCTURES, "native_structures")
    yield module
    del sys.modules["native_structures"]


def function(routine: Any, result: Any, *arguments: Any) -> Any:
    """A routine as a function of Python."""
    return ctypes.CFUNCTYPE(result, *arguments)(native_address(routine))


def test_routines_follow_pointers_to_structures_with_inner_ones(routines):
    nodes = [routines.Node(value=k) for k in (10, 20)]
    nodes[0].set(next=ctypes.addressof(nodes[1]))
    points = [(1.5, 2.0, 7), (4.0, 1.0, 1), (-2.0, 8.0, 7)]
    for node in nodes:
        for point, (x, y, color) in zip(node.points, points, strict=True):
            point.x, point.y, point.color = x, y, color
        node.origin.color = 100
    total = function(routines.total, ctypes.c_int64, ctypes.c_int64)
    each = 10 - 1 + 10 - 100
    assert total(ctypes.addressof(nodes[0])) == 2 * each
    assert [(node.value, node.origin.x) for node in nodes] == [(13, -2.0), (23, -2.0)]
    assert total(0) == 0


def test_numbers_in_memory_wrap_at_their_widths(routines):
    later = routines.Later()
    n = routines.Numbers(127, 255, -(2**15), 0, -(2**30), 2**31, 2**63, apart=3)
    n.set(later=ctypes.addressof(later))
    widths = function(routines.widths, ctypes.c_int64, ctypes.c_int64)
    assert widths(ctypes.addressof(n)) == (-128) + (-127) + 900
    assert (n.a, n.b, n.c, n.d) == (-128, 0, 2**15 - 1, 2**16 - 1)
    assert (n.e, n.f, n.g, n.apart, later.count) == (-(2**31), 0, 2**63, 9, 3)
    offsets = [getattr(routines.Numbers, x).offset for x in ("apart", "later")]
    assert offsets == [128, 256]


def test_arrays_of_pointers_and_of_structures(routines):
    points = [routines.Point(x, 0.0, color) for x, color in ((2.5, 7), (0.1, 1))]
    places = (ctypes.c_int64 * 2)(*map(ctypes.addressof, points))
    run = function(routines.pointers, ctypes.c_double, ctypes.c_int64, ctypes.c_int64)
    assert run(ctypes.addressof(places), 2) == np.float32(0.1)
    assert run(ctypes.addressof(places), 1) == 0


def test_functions_are_called_through_fields(routines):
    n = routines.Numbers()
    run = function(routines.indirect, ctypes.c_double, ctypes.c_int64, ctypes.c_double)
    assert run(ctypes.addressof(n), 3.0) == math.ldexp(3.0, -3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    return p.z", "Point has no 'z'"),
        ("    return p + 1", "not an operator"),
        ("    return p < p", "not a comparison"),
        ("    p.pair = p.pair", "written field by field"),
        ("    return p.x", "float is not int"),
        ("    p.y = None", "None is not int"),
        ("    q = 1\n    q = p\n    return q", "Point is not int"),
        ("    q: Point | None = None\n    return q.z", "Point has no 'z'"),
        ("    return atomic_load(p.x)", "64-bit integers"),
        ("    return labs(p)", "Point is not int"),
        ("    return labs(1, 2)", "labs takes 1 argument"),
        ("    return p.y(1)", "int is not a function"),
        ("    return cast(float, p)", "a cast is of pointers"),
        ("    local(Point, p.y)", "constant number"),
    ],
)
def test_what_a_type_does_not_have_is_an_error(tmp_path, body, message):
    source = f"""
from __future__ import annotations
from arrayfn.backends.native import *
from arrayfn.backends.native import CFunction
from arrayfn.backends.native.structures import Inline, Struct, f32
class Pair(Struct):
    a: int
class Point(Struct):
    x: f32
    y: int
    pair: Inline[Pair]
labs = CFunction[[int], int]("labs")
@native
def f(p: Point) -> int:
{body}
"""
    module = native_module(tmp_path / "types.py", source, "native_types")
    with pytest.raises(expressions.NativeSyntaxError, match=message):
        compiler.compile_module(vars(module), target.host().triple)


def test_a_structure_of_another_module_is_in_the_key(tmp_path):
    head = "from arrayfn.backends.native.structures import Struct\n"
    keys = set[str]()
    for field in ("a", "b"):
        text = f"{head}class Inner(Struct):\n    {field}: int\n    c: int\n"
        native_module(tmp_path / f"inner_{field}.py", text, "native_inner")
        text = f"{head}from native_inner import Inner\nclass Outer(Struct):\n"
        native_module(tmp_path / "outer.py", text + "    i: Inner\n", "native_outer")
        user = "from native_outer import Outer\n"
        user = native_module(tmp_path / "user.py", user, "native_user")
        keys.add(code._key(vars(user)))
    assert len(keys) == 2


LATE = """
from arrayfn.backends.native import native
from arrayfn.backends.native.structures import Struct, external


class Late(Struct):
    count: int


LATE = external(Late, "arrayfn_test_late")


@native
def counted() -> int:
    LATE.count += 2
    return LATE.count
"""


def test_memory_can_be_defined_when_other_code_has_been_loaded(tmp_path, routines):
    native_address(routines.total)
    module = native_module(tmp_path / "late.py", LATE, "late")
    state = module.Late(count=40)
    ENGINE.define("arrayfn_test_late", lambda: ctypes.addressof(state))
    run = function(module.counted, ctypes.c_int64)
    assert [run(), run()] == [42, 44]
    assert state.count == 44
