"""Tracing: running a Python function on Tracers, to get its Program.

There is one Tracer. It stands for a value of the Program being traced (its *frame*).
Under ``jit`` it is abstract: a type. Outside ``jit``, ``grad`` and friends trace with
values: the Tracer carries its concrete array too, so that ``print(x)``, ``float(x)``
and ``if x > 0:`` work. A Tracer of an enclosing frame, or an array, that the function
closes over becomes an input of its Program (see ``Trace.captured``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from arrayfn import dtypes
from arrayfn.builder import ProgramBuilder
from arrayfn.dtypes import DType
from arrayfn.errors import (
    AbstractValueError,
    ArgumentError,
    ArrayfnError,
    InPlaceError,
    SourceLocation,
    TracerLeakError,
    user_location,
)
from arrayfn.ir import (
    NO_PARAMS,
    ArrayType,
    Atom,
    Equation,
    Literal,
    Program,
    Var,
    type_of,
)
from arrayfn.layout import Shape
from arrayfn.primitives.base import Primitive

Array = np.ndarray[Any, Any]


class Frame:
    """A function being traced.

    ``abstract`` frames, and those inside them, stage every operation, also those on
    arrays alone; the others compute these at once.
    """

    def __init__(self, name: str, abstract: bool, parent: Frame | None) -> None:
        self.builder = ProgramBuilder(name)
        self.abstract = abstract or (parent is not None and parent.abstract)
        self.parent = parent
        self.closed = False
        self._captured: dict[int, tuple[Tracer | Array, Var]] = {}

    @property
    def captured(self) -> list[tuple[Tracer | Array, Var]]:
        """What was closed over, with the input that stands for it."""
        return list(self._captured.values())

    def atom(self, operand: Any) -> Atom:
        """``operand`` (Tracer, array or scalar) as an atom of this frame's Program."""
        if isinstance(operand, Tracer):
            if operand.frame is self:
                return operand.atom
            operand.check_alive(self)
            if isinstance(operand.atom, Literal):
                return operand.atom
            return self._capture(operand, operand.type)
        if isinstance(operand, Literal):
            return operand
        if dtypes.is_python_scalar(operand):
            return Literal(operand, dtypes.weak_dtype(operand), weak=True)
        array = np.asarray(operand)
        if array.ndim == 0 and array.dtype.kind in "biufc":
            return Literal(array.item(), dtypes.canonical(array.dtype))
        return self._capture(array, type_of(array))

    def _capture(self, value: Tracer | Array, type: ArrayType) -> Var:
        key = id(value.atom) if isinstance(value, Tracer) else id(value)
        known = self._captured.get(key)
        if known is None:
            known = self._captured[key] = (value, Var(type))
        return known[1]


class _Local(threading.local):
    def __init__(self) -> None:
        self.frame: Frame | None = None


_local = _Local()


def current_frame() -> Frame | None:
    """The innermost frame being traced in this thread."""
    return _local.frame


@dataclass(frozen=True)
class Trace:
    """What tracing gives.

    ``program`` takes the function's arguments and then the ``captured`` values.
    """

    program: Program
    captured: tuple[Tracer | Array, ...]


def trace(
    function: Callable[..., Sequence[Any]],
    types: Sequence[ArrayType],
    *,
    name: str,
    hints: Sequence[str] | None = None,
    values: Sequence[Any] | None = None,
    abstract: bool = True,
) -> Trace:
    """Run ``function`` on one Tracer per type; its flat results make the Program.

    With ``values`` the Tracers carry them (None where one is unknown). At top level
    captured arrays become the Program's constants.
    """
    parent = _local.frame
    frame = Frame(name, abstract, parent)
    location = user_location()
    tracers = [
        Tracer(
            frame,
            frame.builder.input(type, hints[position] if hints else ""),
            None if values is None else values[position],
            location,
        )
        for position, type in enumerate(types)
    ]
    _local.frame = frame
    try:
        outputs = [frame.atom(x) for x in function(*tracers)]
    finally:
        _local.frame = parent
        frame.closed = True
    captured = frame.captured
    builder = frame.builder
    if parent is None:
        for value, var in captured:
            assert not isinstance(value, Tracer)
            builder.adopt_constant(var, value)
        captured = []
    builder.inputs += [var for _, var in captured]
    return Trace(builder.build(outputs), tuple(v for v, _ in captured))


def is_staged(operands: Sequence[Any]) -> bool:
    """Whether an operation on ``operands`` is traced, rather than computed at once."""
    frame = _local.frame
    if frame is None:
        return False
    if not frame.abstract:
        return any([isinstance(x, Tracer) for x in operands])
    return True


def apply(primitive: Primitive, *operands: Any, **params: Any) -> Any:
    """Apply ``primitive`` to Tracers, arrays and scalars; the output or their tuple.

    Traces into the current frame, or computes at once with the NumPy reference.
    """
    frame = _local.frame
    if frame is None or not is_staged(operands):
        return _compute(primitive, operands, params)
    tracers = _stage(frame, primitive, operands, params, user_location())
    return tracers[0] if len(tracers) == 1 else tracers


def apply_program(program: Program, operands: Sequence[Any]) -> list[Any]:
    """The outputs of ``program`` on Tracers and arrays, by inlining or computing it."""
    environment: dict[Var, Any] = dict(zip(program.inputs, operands, strict=True))
    environment.update(zip(program.constants, program.constant_values, strict=True))
    frame = _local.frame if is_staged(operands) else None
    for equation in program.equations:
        arguments = [_lookup(a, environment) for a in equation.inputs]
        row = equation.primitive
        assert isinstance(row, Primitive)
        if frame is None:
            arrays = [_array(x) for x in arguments]
            result = row.reference(*arrays, **equation.params)
        else:
            result = _stage(frame, row, arguments, equation.params, equation.source)
        results = result if isinstance(result, (tuple, list)) else (result,)
        environment.update(zip(equation.outputs, results, strict=True))
    outputs = [_lookup(a, environment) for a in program.outputs]
    if frame is not None:
        return [_array(x) if isinstance(x, Literal) else x for x in outputs]
    taken = {id(x) for x in (*operands, *program.constant_values)}
    owned: list[Any] = []
    for output in outputs:
        array = own(_array(output), taken)
        taken.add(id(array))
        owned.append(array)
    return owned


def _stage(
    frame: Frame,
    primitive: Primitive,
    operands: Sequence[Any],
    params: Any,
    location: SourceLocation | None,
) -> tuple[Any, ...]:
    atoms = tuple([frame.atom(x) for x in operands])
    types = _output_types(primitive, [a.type for a in atoms], params, location)
    outputs = tuple([Var(type) for type in types])
    kept = MappingProxyType(dict(params)) if params else NO_PARAMS
    frame.builder.equations.append(
        Equation(primitive, atoms, kept, outputs, location)
    )
    known = None if frame.abstract else _values(operands)
    if known is None:
        return tuple([Tracer(frame, var, None, location) for var in outputs])
    result = primitive.reference(*known, **params)
    values = result if isinstance(result, (tuple, list)) else [result]
    return tuple(
        Tracer(frame, var, value, location)
        for var, value in zip(outputs, values, strict=True)
    )


def _output_types(
    primitive: Primitive,
    types: Sequence[ArrayType],
    params: Any,
    location: SourceLocation | None,
) -> tuple[ArrayType, ...]:
    try:
        result = primitive.types(*types, **params)
    except ArrayfnError as error:
        if error.location is None and location is not None:
            raise type(error)(str(error), location) from None
        raise
    return result if isinstance(result, tuple) else (result,)


def _lookup(atom: Atom, environment: dict[Var, Any]) -> Any:
    return atom if isinstance(atom, Literal) else environment[atom]


def _array(value: Any) -> Array:
    """``value``, an array or scalar or Literal, as an array."""
    if isinstance(value, Literal):
        return np.asarray(value.value).astype(value.type.dtype)
    return np.asarray(value)


def _compute(primitive: Primitive, operands: Sequence[Any], params: Any) -> Any:
    for operand in operands:
        if isinstance(operand, Tracer):
            operand.check_alive(None)
    arrays = [_array(x) for x in operands]
    types = [type_of(a) for a in arrays]
    try:
        primitive.types(*types, **params)
    except ArrayfnError as error:
        if error.location is None:
            raise type(error)(str(error), user_location()) from None
        raise
    result = primitive.reference(*arrays, **params)
    taken = {id(a) for a in arrays}
    if isinstance(result, (tuple, list)):
        return tuple(own(x, taken) for x in result)
    return own(result, taken)


def own(value: Any, taken: Container[int] = ()) -> Array:
    """``value`` as an array that is row-major, writable and nobody else's.

    ``taken`` holds the ids of arrays that are somebody else's.
    """
    array = np.asarray(value)
    flags = array.flags
    free = array.base is None and id(array) not in taken
    if free and flags.c_contiguous and flags.writeable:
        return array
    return np.array(array, order="C")


def _values(operands: Sequence[Any]) -> list[Any] | None:
    values: list[Any] = []
    for x in operands:
        value = x.value if isinstance(x, Tracer) else x
        if value is None:
            return None
        values.append(_array(value))
    return values


class Namespace:
    """The functions a Tracer's operators and methods call; ``arrayfn.numpy`` fills it."""

    functions: dict[str, Callable[..., Any]] = {}
    ufuncs: dict[Any, Callable[..., Any]] = {}
    array_functions: dict[Any, Callable[..., Any]] = {}
    module: Any = None


def _operator(name: str) -> Callable[..., Any]:
    def method(self: Tracer, *operands: Any, **options: Any) -> Any:
        if operands and not _is_operand(operands[0]) and name in _BINARY:
            return NotImplemented
        return Namespace.functions[name](self, *operands, **options)

    method.__name__ = name
    return method


def _reflected(name: str) -> Callable[[Tracer, Any], Any]:
    def method(self: Tracer, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented
        return Namespace.functions[name](other, self)

    return method


def _is_operand(value: Any) -> bool:
    return (
        isinstance(value, (Tracer, np.ndarray, np.generic))
        or dtypes.is_python_scalar(value)
    )


_BINARY = frozenset(
    "add subtract multiply true_divide floor_divide remainder power matmul equal "
    "not_equal less less_equal greater greater_equal bitwise_and bitwise_or bitwise_xor "
    "left_shift right_shift".split()
)


def _in_place(symbol: str) -> Callable[[Tracer, Any], NoReturn]:
    def method(self: Tracer, other: Any) -> NoReturn:
        raise InPlaceError(
            f"x {symbol}= y would change an array that is being traced, and those are "
            f"immutable; write x = x {symbol} y",
            user_location(),
        )

    return method


class Tracer:
    """A value of the Program being traced. Behaves as a NumPy array that is immutable."""

    __slots__ = ("atom", "frame", "location", "value")
    __array_priority__ = 1000

    def __init__(
        self,
        frame: Frame,
        atom: Atom,
        value: Any,
        location: SourceLocation | None,
    ) -> None:
        self.frame = frame
        self.atom = atom
        self.value = value
        self.location = location

    @property
    def type(self) -> ArrayType:
        """Shape, dtype and layout."""
        return self.atom.type

    @property
    def shape(self) -> Shape:
        """The extents of the axes."""
        return self.atom.type.shape

    @property
    def dtype(self) -> DType:
        """The data type."""
        return self.atom.type.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.atom.type.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.atom.type.size

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return self.atom.type.nbytes

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.atom.type.dtype.itemsize

    @property
    def device(self) -> str:
        """The array API's name of where the value is."""
        return "cpu"

    @property
    def T(self) -> Any:
        """The axes reversed."""
        return Namespace.functions["transpose"](self)

    @property
    def mT(self) -> Any:
        """The last two axes exchanged."""
        return Namespace.functions["matrix_transpose"](self)

    @property
    def real(self) -> Any:
        """The real part."""
        return Namespace.functions["real"](self)

    @property
    def imag(self) -> Any:
        """The imaginary part."""
        return Namespace.functions["imag"](self)

    @property
    def at(self) -> Any:
        """``x.at[index].set(y)`` and its kin: a changed copy."""
        return Namespace.functions["at"](self)

    def check_alive(self, frame: Frame | None) -> None:
        """Raise TracerLeakError unless this is a value of ``frame`` or around it."""
        enclosing = frame
        while enclosing is not None:
            if enclosing is self.frame:
                return
            enclosing = enclosing.parent
        made = f" It was made at {self.location}." if self.location else ""
        raise TracerLeakError(
            f"a traced value ({self.type}) is used after {self.frame.builder.name!r}, "
            f"the function it belongs to, has returned.{made} Return it from the "
            "function instead of storing it outside",
            user_location(),
        )

    def concrete(self, wanted: str, remedy: str = "") -> Any:
        """The value; AbstractValueError if it is not known. ``wanted``: who asks."""
        if self.value is not None:
            return self.value
        made = f" It was made at {self.location}." if self.location else ""
        raise AbstractValueError(
            f"{wanted} needs the value of an array that is only known as {self.type} "
            f"while {self.frame.builder.name!r} is traced.{made} {remedy}",
            user_location(),
        )

    def __bool__(self) -> bool:
        return bool(
            self.concrete(
                "if, while, and, or, not: a truth value",
                "Write arrayfn.numpy.where(condition, x, y) to choose between values, "
                "or make the argument static (jit(f, static_argnums=...))",
            )
        )

    def __float__(self) -> float:
        return float(self.concrete("float()", _SCALAR_REMEDY))

    def __int__(self) -> int:
        return int(self.concrete("int()", _SCALAR_REMEDY))

    def __index__(self) -> int:
        return self.concrete("an index or a shape", _SCALAR_REMEDY).__index__()

    def __complex__(self) -> complex:
        return complex(self.concrete("complex()", _SCALAR_REMEDY))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        value = self.concrete(
            "numpy.asarray",
            "Use arrayfn.numpy functions (or NumPy functions of this value), which are "
            "traced",
        )
        return np.array(value, dtype=dtype)

    def item(self, *index: int) -> Any:
        """The Python scalar at ``index``; needs a value."""
        return self.concrete("item()", _SCALAR_REMEDY).item(*index)

    def tolist(self) -> Any:
        """Nested lists; needs a value."""
        return self.concrete("tolist()", _SCALAR_REMEDY).tolist()

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **options: Any
    ) -> Any:
        if options.get("out") is not None:
            raise InPlaceError(
                f"numpy.{ufunc.__name__}(..., out=...) would change an array while "
                "tracing; use the value it returns",
                user_location(),
            )
        function = Namespace.ufuncs.get((ufunc, method))
        if function is None:
            return NotImplemented
        return function(*inputs, **options)

    def __array_function__(
        self, function: Any, types: Any, args: Any, kwargs: Any
    ) -> Any:
        traced = Namespace.array_functions.get(function)
        if traced is None:
            raise ArgumentError(
                f"numpy.{getattr(function, '__name__', function)} cannot be traced: "
                "arrayfn.numpy has no such function",
                user_location(),
            )
        return traced(*args, **kwargs)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return Namespace.module

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a rank-0 array")
        return self.shape[0]

    def __iter__(self) -> Any:
        if not self.shape:
            raise TypeError("iteration over a rank-0 array")
        return (self[i] for i in range(self.shape[0]))

    def __getitem__(self, index: Any) -> Any:
        return Namespace.functions["getitem"](self, index)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise InPlaceError(
            "x[index] = y would change an array that is being traced, and those are "
            "immutable; write x = x.at[index].set(y)",
            user_location(),
        )

    def __repr__(self) -> str:
        if self.value is not None:
            return f"Tracer({self.value!r})"
        return f"Tracer<{self.type}>"

    def __str__(self) -> str:
        return str(self.value) if self.value is not None else repr(self)

    def __format__(self, spec: str) -> str:
        if self.value is not None:
            return format(self.value, spec)
        return format(repr(self), spec if spec.isalpha() and spec == "s" else "")

    def __hash__(self) -> int:
        raise TypeError("a traced array is not hashable")

    __neg__ = _operator("negative")
    __pos__ = _operator("positive")
    __abs__ = _operator("absolute")
    __invert__ = _operator("invert")
    __add__ = _operator("add")
    __sub__ = _operator("subtract")
    __mul__ = _operator("multiply")
    __truediv__ = _operator("true_divide")
    __floordiv__ = _operator("floor_divide")
    __mod__ = _operator("remainder")
    __pow__ = _operator("power")
    __matmul__ = _operator("matmul")
    __and__ = _operator("bitwise_and")
    __or__ = _operator("bitwise_or")
    __xor__ = _operator("bitwise_xor")
    __lshift__ = _operator("left_shift")
    __rshift__ = _operator("right_shift")
    __eq__ = _operator("equal")  # type: ignore[assignment]
    __ne__ = _operator("not_equal")  # type: ignore[assignment]
    __lt__ = _operator("less")
    __le__ = _operator("less_equal")
    __gt__ = _operator("greater")
    __ge__ = _operator("greater_equal")
    __radd__ = _reflected("add")
    __rsub__ = _reflected("subtract")
    __rmul__ = _reflected("multiply")
    __rtruediv__ = _reflected("true_divide")
    __rfloordiv__ = _reflected("floor_divide")
    __rmod__ = _reflected("remainder")
    __rpow__ = _reflected("power")
    __rmatmul__ = _reflected("matmul")
    __rand__ = _reflected("bitwise_and")
    __ror__ = _reflected("bitwise_or")
    __rxor__ = _reflected("bitwise_xor")
    __rlshift__ = _reflected("left_shift")
    __rrshift__ = _reflected("right_shift")
    __iadd__ = _in_place("+")
    __isub__ = _in_place("-")
    __imul__ = _in_place("*")
    __itruediv__ = _in_place("/")
    __ifloordiv__ = _in_place("//")
    __imod__ = _in_place("%")
    __ipow__ = _in_place("**")
    __imatmul__ = _in_place("@")
    __iand__ = _in_place("&")
    __ior__ = _in_place("|")
    __ixor__ = _in_place("^")

    all = _operator("all")
    any = _operator("any")
    argmax = _operator("argmax")
    argmin = _operator("argmin")
    astype = _operator("astype")
    clip = _operator("clip")
    conj = _operator("conj")
    copy = _operator("copy")
    dot = _operator("dot")
    flatten = _operator("ravel")
    max = _operator("max")
    mean = _operator("mean")
    min = _operator("min")
    prod = _operator("prod")
    ravel = _operator("ravel")
    repeat = _operator("repeat")
    reshape = _operator("reshape_method")
    round = _operator("round")
    squeeze = _operator("squeeze")
    std = _operator("std")
    sum = _operator("sum")
    swapaxes = _operator("swapaxes")
    take = _operator("take")
    transpose = _operator("transpose_method")
    var = _operator("var")


_SCALAR_REMEDY = (
    "Keep it an array, or make the argument static (jit(f, static_argnums=...))"
)
