"""The Tracer: a value of the Program being traced, which behaves as a NumPy array.

Its operators and methods, and NumPy's functions of it, are those of ``Namespace``,
which ``arrayfn.numpy`` fills. It is immutable, and of use only while the function it
belongs to is being traced.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn, Protocol

import numpy as np

from arrayfn.dtypes import DType
from arrayfn.errors import (
    AbstractValueError,
    ArgumentError,
    InPlaceError,
    SourceLocation,
    TracerLeakError,
    user_location,
)
from arrayfn.ir import ArrayType, Atom
from arrayfn.layout import Shape
from arrayfn.tracer.methods import (
    Namespace,
    Traced,
    called,
    in_place_method,
    is_operand,
    operator,
    reflected,
)

Array = np.ndarray[Any, Any]

_SCALAR_REMEDY: Final = (
    "Keep it an array, or make the argument static (jit(f, static_argnums=...))"
)
_INDEX_REMEDY: Final = (
    "Write arrayfn.lax.fori_loop(0, n, body, value) for a loop over range(n), keep it "
    "an array, or make the argument static (jit(f, static_argnums=...))"
)


class Owner(Protocol):
    """The frame that a Tracer belongs to: a function being traced."""

    @property
    def name(self) -> str:
        """The function's name."""
        ...

    @property
    def parent(self) -> Owner | None:
        """The frame around it."""
        ...


class Tracer(Traced):
    """A value of the Program being traced: an immutable array.

    ``value`` is the array itself where that is known, else None.
    """

    __slots__ = ("atom", "frame", "location", "value")
    __array_priority__ = 1000

    def __init__(
        self,
        frame: Owner,
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
    def T(self) -> Any:  # noqa: N802 - NumPy's name
        """The axes reversed."""
        return Namespace.functions["transpose"](self)

    @property
    def mT(self) -> Any:  # noqa: N802 - the array API's name
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

    def check_alive(self, frame: Owner | None) -> None:
        """Raise TracerLeakError unless this is a value of ``frame`` or around it."""
        enclosing = frame
        while enclosing is not None:
            if enclosing is self.frame:
                return
            enclosing = enclosing.parent
        made = f" It was made at {self.location}." if self.location else ""
        raise TracerLeakError(
            f"a traced value ({self.type}) is used after {self.frame.name!r}, "
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
            f"while {self.frame.name!r} is traced.{made} {remedy}",
            user_location(),
        )

    def __bool__(self) -> bool:
        return bool(
            self.concrete(
                "a truth value (of if, while, and, or, not)",
                "Write arrayfn.numpy.where(condition, x, y) to choose between values, "
                "arrayfn.lax.cond(condition, f, g, x) between computations, "
                "arrayfn.lax.while_loop for a while, or make the argument static "
                "(jit(f, static_argnums=...))",
            )
        )

    def __float__(self) -> float:
        return float(self.concrete("float()", _SCALAR_REMEDY))

    def __int__(self) -> int:
        return int(self.concrete("int()", _SCALAR_REMEDY))

    def __index__(self) -> int:
        return self.concrete("an index or a shape", _INDEX_REMEDY).__index__()

    def __complex__(self) -> complex:
        return complex(self.concrete("complex()", _SCALAR_REMEDY))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        # Even where the value is known: what is computed from a plain array would be
        # cut off from the derivative, without a word.
        raise ArgumentError(
            f"a traced value ({self.type}) is not converted to a NumPy array: what is "
            "computed from that would not be traced. Use functions of arrayfn.numpy "
            "(asarray and stack among them), or NumPy's that take arrays as they are; "
            "to index a NumPy array by it, arrayfn.numpy.asarray(array)[index]; "
            "x.value is the array alone, if it is known",
            user_location(),
        )

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tracer:
        """The array API's move to a device: a traced value is where it will be."""
        return self

    def item(self, *index: int) -> Any:
        """The Python scalar at ``index``; needs a value."""
        return self.concrete("item()", _SCALAR_REMEDY).item(*index)

    def tolist(self) -> Any:
        """Nested lists; needs a value."""
        return self.concrete("tolist()", _SCALAR_REMEDY).tolist()

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **options: Any
    ) -> Any:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        if options.get("out") is not None or method == "at":
            raise InPlaceError(
                f"numpy.{name} would change an array while tracing; use the value that "
                "a function returns, or x.at[index].add(y) and its kin",
                user_location(),
            )
        function = Namespace.ufuncs.get((ufunc, method))
        if function is None:
            if not all(is_operand(x) for x in inputs):
                return NotImplemented
            raise ArgumentError(
                f"numpy.{name} cannot be traced: arrayfn.numpy has no such function",
                user_location(),
            )
        return called(f"numpy.{name}", function, inputs, options)

    def __array_function__(
        self, function: Any, types: Any, args: Any, kwargs: Any
    ) -> Any:
        name = f"{function.__module__}.{function.__name__}"
        traced = Namespace.array_functions.get(function)
        if traced is None:
            raise ArgumentError(
                f"{name} cannot be traced: arrayfn.numpy has no such function",
                user_location(),
            )
        return called(name, traced, args, kwargs)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return Namespace.module

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a rank-0 array")
        return self.shape[0]

    def __iter__(self) -> Any:
        if not self.shape:
            raise ArgumentError(
                f"iteration over an array of rank 0 ({self.type}); if it counts the "
                "rounds of a loop, write arrayfn.lax.fori_loop(0, n, body, value)",
                user_location(),
            )
        return (self[i] for i in range(self.shape[0]))

    def __getitem__(self, index: Any) -> Any:
        return Namespace.functions["getitem"](self, index)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise InPlaceError(
            "x[index] = y would change an array that is being traced, and those are "
            "immutable; write x = x.at[index].set(y)",
            user_location(),
        )

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __round__(self, digits: int = 0) -> Any:
        return self.round(digits)

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

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
        raise ArgumentError(
            f"a traced value ({self.type}) is not hashable: it is no key of a dict or "
            "set, and no static argument",
            user_location(),
        )

    __neg__ = operator("negative")
    __pos__ = operator("positive")
    __abs__ = operator("absolute")
    __invert__ = operator("invert")
    __add__ = operator("add")
    __sub__ = operator("subtract")
    __mul__ = operator("multiply")
    __truediv__ = operator("true_divide")
    __floordiv__ = operator("floor_divide")
    __mod__ = operator("remainder")
    __pow__ = operator("power")
    __matmul__ = operator("matmul")
    __and__ = operator("bitwise_and")
    __or__ = operator("bitwise_or")
    __xor__ = operator("bitwise_xor")
    __lshift__ = operator("left_shift")
    __rshift__ = operator("right_shift")
    __eq__ = operator("equal")  # type: ignore[assignment]
    __ne__ = operator("not_equal")  # type: ignore[assignment]
    __lt__ = operator("less")
    __le__ = operator("less_equal")
    __gt__ = operator("greater")
    __ge__ = operator("greater_equal")
    __radd__ = reflected("add")
    __rsub__ = reflected("subtract")
    __rmul__ = reflected("multiply")
    __rtruediv__ = reflected("true_divide")
    __rfloordiv__ = reflected("floor_divide")
    __rmod__ = reflected("remainder")
    __rpow__ = reflected("power")
    __rmatmul__ = reflected("matmul")
    __rand__ = reflected("bitwise_and")
    __ror__ = reflected("bitwise_or")
    __rxor__ = reflected("bitwise_xor")
    __rlshift__ = reflected("left_shift")
    __rrshift__ = reflected("right_shift")

    all = operator("all")
    any = operator("any")
    argmax = operator("argmax")
    argmin = operator("argmin")
    astype = operator("astype")
    clip = operator("clip")
    conj = operator("conj")
    conjugate = operator("conj")
    copy = operator("copy")
    cumprod = operator("cumprod")
    cumsum = operator("cumsum")
    diagonal = operator("diagonal")
    dot = operator("dot")
    flatten = operator("ravel")
    max = operator("max")
    mean = operator("mean")
    min = operator("min")
    prod = operator("prod")
    ravel = operator("ravel")
    repeat = operator("repeat")
    reshape = operator("reshape_method")
    round = operator("round")
    squeeze = operator("squeeze")
    std = operator("std")
    sum = operator("sum")
    swapaxes = operator("swapaxes")
    take = operator("take")
    trace = operator("trace")
    transpose = operator("transpose_method")
    var = operator("var")

    fill = in_place_method("fill", "arrayfn.numpy.full_like(x, value)")
    itemset = in_place_method("itemset", "x.at[index].set(value)")
    partition = in_place_method("partition", "arrayfn.numpy.partition(x, kth)")
    put = in_place_method("put", "x.at[index].set(values)")
    resize = in_place_method("resize", "arrayfn.numpy.reshape(x, shape)")
    sort = in_place_method("sort", "arrayfn.numpy.sort(x)")
