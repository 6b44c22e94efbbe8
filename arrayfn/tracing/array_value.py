"""An immutable array with NumPy's operators, methods and protocols.

Traced values and arrays on a GPU share them. The functions behind them are looked up in
``Namespace``, which ``arrayfn.numpy`` fills.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from typing_extensions import override

from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, InPlaceError, user_location
from arrayfn.ir import ArrayType
from arrayfn.tracing.methods import (
    Operand,
    called,
    function_for,
    in_dtype,
    in_place_method,
    is_operand,
    namespace,
    operator,
    reflected,
)


class Typed:
    """The base of values that have an ``ArrayType``."""

    __slots__ = ()

    @property
    def type(self) -> ArrayType:
        """The shape, dtype and layout."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the axes."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """The data type of the elements."""
        return self.type.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.type.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.type.size


class ImmutableArray(Typed, Operand):
    """The methods that traced values and arrays on devices have in common."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment] # __eq__ compares elements

    KIND: ClassVar[str] = "that is immutable"
    """Which array, for errors: "an array that is being traced"."""
    CHANGED: ClassVar[str] = "that is immutable"
    """What is wrong with ``out=`` and ``ufunc.at``."""
    REFUSED: ClassVar[str] = "is no function of arrayfn.numpy"
    """What is wrong with a function of NumPy's that ``Namespace`` does not have."""

    def concrete(self, wanted: str, remedy: str) -> Any:
        """Return the value as a NumPy array; AbstractValueError if it is not known.

        For the message, ``wanted`` names what asks for the value, and ``remedy`` says
        what to write instead.
        """
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.type.nbytes

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.type.dtype.itemsize

    @property
    def T(self) -> Any:  # noqa: N802 - NumPy's name
        """The axes reversed."""
        return namespace().functions["transpose"](self)

    @property
    def mT(self) -> Any:  # noqa: N802 - the array API's name
        """The last two axes exchanged."""
        return namespace().functions["matrix_transpose"](self)

    @property
    def real(self) -> Any:
        """The real part."""
        return namespace().functions["real"](self)

    @property
    def imag(self) -> Any:
        """The imaginary part."""
        return namespace().functions["imag"](self)

    @property
    def at(self) -> Any:
        """``x.at[index].set(y)`` and similar methods, which give a changed copy."""
        return namespace().functions["at"](self)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **options: Any
    ) -> Any:
        """Call arrayfn's function for a method of a ufunc: NumPy's protocol (NEP 13).

        ``method`` is "__call__", "reduce" and so on. Raises InPlaceError for ``out=``
        and ``ufunc.at``, and ArgumentError for a ufunc that arrayfn does not have,
        unless another operand may handle it.
        """
        own = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        name = f"numpy.{own}" if hasattr(np, ufunc.__name__) else f"the ufunc {own}"
        if options.get("out") is not None or method == "at":
            raise InPlaceError(
                f"{name} would change an array {self.CHANGED}; use the value "
                "that a function returns, or x.at[index].add(y), for example",
                user_location(),
            )
        function = function_for(ufunc, method)
        if function is None:
            if not all(is_operand(x) for x in inputs):
                return NotImplemented
            raise ArgumentError(
                f"{name} {self.REFUSED}",
                user_location(),
            )
        if method == "__call__" and options.get("dtype") is not None:
            inputs, options = in_dtype(name, inputs, options)
        return called(name, function, inputs, options)

    def __array_function__(
        self, function: Any, types: Any, args: Any, kwargs: Any
    ) -> Any:
        """Call arrayfn's function for a function of NumPy's: its protocol (NEP 18).

        Raises InPlaceError for functions that change an argument, and ArgumentError for
        functions that arrayfn does not have.
        """
        name = f"{function.__module__}.{function.__name__}"
        if function in namespace().changing:
            raise InPlaceError(
                f"{name} would change an array in place, which is not done with what "
                f"is an array {self.KIND}; arrayfn.numpy.{function.__name__} gives a "
                "changed copy",
                user_location(),
            )
        traced = namespace().array_functions.get(function)
        if traced is None:
            raise ArgumentError(
                f"{name} {self.REFUSED}",
                user_location(),
            )
        return called(name, traced, args, kwargs)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        """Return ``arrayfn.numpy``, the array API's namespace of this array."""
        return namespace().module

    def __len__(self) -> int:
        """Return the extent of axis 0."""
        if not self.shape:
            raise TypeError("len() of a rank-0 array")
        return self.shape[0]

    def __iter__(self) -> Any:
        """Iterate over axis 0. Raises ArgumentError for rank 0."""
        if not self.shape:
            raise ArgumentError(
                f"iteration over an array of rank 0 ({self.type}); if it counts the "
                "rounds of a loop, write arrayfn.lax.fori_loop(0, n, body, value)",
                user_location(),
            )
        return (self[i] for i in range(self.shape[0]))

    def __getitem__(self, index: Any) -> Any:
        """Return elements by an index of NumPy's kinds."""
        return namespace().functions["getitem"](self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Raise InPlaceError: the array is immutable."""
        raise InPlaceError(
            f"x[index] = y would change an array {self.KIND}, and those are "
            "immutable; write x = x.at[index].set(y)",
            user_location(),
        )

    def __divmod__(self, other: Any) -> Any:
        """Return the floor of the quotient, and the remainder."""
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        """Return ``divmod(other, self)``."""
        return other // self, other % self

    def __round__(self, digits: int = 0) -> Any:
        """Round to a number of decimal digits."""
        return self.round(digits)

    def __contains__(self, value: Any) -> bool:
        """Whether an element equals ``value``."""
        return bool((self == value).any())

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
    argpartition = operator("argpartition")
    argsort = operator("argsort")
    astype = operator("astype")
    byteswap = operator("byteswap_method")
    choose = operator("choose")
    clip = operator("clip")
    compress = operator("compress")
    conj = operator("conj")
    conjugate = operator("conj")

    def copy(self) -> Any:
        """Return an array with the same elements; an array on a device is copied."""
        return namespace().functions["copy"](self)

    cumprod = operator("cumprod")
    cumsum = operator("cumsum")
    diagonal = operator("diagonal")
    dot = operator("dot")
    flatten = operator("ravel")
    max = operator("max")
    mean = operator("mean")
    min = operator("min")
    nonzero = operator("nonzero")
    prod = operator("prod")
    ptp = operator("ptp")
    ravel = operator("ravel")
    repeat = operator("repeat")
    reshape = operator("reshape_method")
    round = operator("round")
    searchsorted = operator("searchsorted")
    squeeze = operator("squeeze")
    std = operator("std")
    sum = operator("sum")
    swapaxes = operator("swapaxes")
    take = operator("take")
    trace = operator("trace")
    transpose = operator("transpose_method")
    var = operator("var")
    view = operator("view_method")

    fill = in_place_method("fill", "arrayfn.numpy.full_like(x, value)")
    itemset = in_place_method("itemset", "x.at[index].set(value)")
    partition = in_place_method("partition", "arrayfn.numpy.partition(x, kth)")
    put = in_place_method("put", "x.at[index].set(values)")
    resize = in_place_method("resize", "arrayfn.numpy.reshape(x, shape)")
    sort = in_place_method("sort", "arrayfn.numpy.sort(x)")


class ArrayOnDevice(ImmutableArray):
    """An array in the memory of a device, on which its operations run.

    ``device`` names the backend. Each operation is compiled and cached. Inside ``jit``
    the array is an argument or a constant like any other.
    """

    __slots__ = ()

    KIND = "on a device"
    CHANGED = "by what is computed on a device"
    REFUSED = (
        "is not computed on a device: arrayfn.numpy has no such function; "
        "numpy.asarray(x) copies the array to the host"
    )

    @property
    def device(self) -> str:
        """The name of the backend whose memory holds the array."""
        raise NotImplementedError

    def block_until_ready(self) -> Self:
        """Wait until the array is computed, and return it.

        This default is for devices that compute at once.
        """
        return self

    def to_device(self, device: str, /, *, stream: Any = None) -> Any:
        """Return the array on ``device``: itself if it is there; for "cpu", NumPy's.

        Raises ArgumentError for other devices, and if a ``stream`` is given.
        """
        if stream is not None:
            raise ArgumentError(
                "arrays move on the only stream, which runs all work; pass no stream",
                user_location(),
            )
        if device == self.device:
            return self
        if device == "cpu":
            return np.asarray(self)
        raise ArgumentError(
            f"an array moves between {self.device!r} and 'cpu', not to {device!r}",
            user_location(),
        )

    def item(self, *index: int) -> Any:
        """Return the only element, or the one at ``index``, as a Python number."""
        return np.asarray(self).item(*index)

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return np.asarray(self).tolist()

    def __bool__(self) -> bool:
        """Return the only element as a bool; copies it to the host."""
        return bool(np.asarray(self))

    def __int__(self) -> int:
        """Return the only element as an int; copies it to the host."""
        return int(np.asarray(self))

    def __float__(self) -> float:
        """Return the only element as a float; copies it to the host."""
        return float(np.asarray(self))

    def __complex__(self) -> complex:
        """Return the only element as a complex; copies it to the host."""
        return complex(np.asarray(self))

    def __index__(self) -> int:
        """Return the only element as an index; copies it to the host."""
        return np.asarray(self).__index__()

    def __array__(
        self, dtype: DType | None = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]:
        """Return a copy on the host, as a NumPy array."""
        raise NotImplementedError

    @override
    def concrete(self, wanted: str, remedy: str) -> np.ndarray[Any, Any]:
        """Return a copy on the host: values on a device are always known."""
        return np.asarray(self)
