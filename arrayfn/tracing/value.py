"""The Tracer: a value of the Program being traced, which behaves as a NumPy array.

It has the operators and methods of ``ImmutableArray``. It can be used only while the
function it belongs to is being traced.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple, NoReturn, Protocol

import numpy as np
from typing_extensions import override

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import (
    AbstractValueError,
    ArgumentError,
    ArrayfnError,
    SourceLocation,
    TracerLeakError,
    user_location,
)
from arrayfn.ir import ArrayType, Atom
from arrayfn.ir.layout import Shape
from arrayfn.tracing.array_value import ArrayOnDevice, ImmutableArray
from arrayfn.tracing.conversions import refused_conversion
from arrayfn.tracing.methods import Namespace, namespace

Array = np.ndarray[Any, Any]

STATIC_REMEDY: Final = "Make the argument static (jit(f, static_argnums=...))"
_SCALAR_REMEDY: Final = (
    "Keep it an array, or make the argument static (jit(f, static_argnums=...))"
)
_INDEX_REMEDY: Final = (
    "Shapes are static: make the argument so (jit(f, static_argnums=...)). Write "
    "arrayfn.lax.dynamic_slice_in_dim(x, start, size, axis) for a slice of a known "
    "size, and arrayfn.lax.fori_loop(0, n, body, value) for a loop over range(n)"
)


class Owner(Protocol):
    """What a Tracer knows of its frame: the function being traced."""

    @property
    def name(self) -> str:
        """The function's name."""
        ...

    @property
    def parent(self) -> Owner | None:
        """The frame around this one, or None."""
        ...

    refused: Refused | None
    """The last refused conversion of one of its values."""


_ARRAY_API_EXTRA = ("array_api_extra._lib._at", "array_api_extra._at")


class Refused(NamedTuple):
    """A conversion that was refused, with the user's line that asked for it.

    It is kept because NumPy and other C code may raise another error in place of
    ``error``.
    """

    error: ArrayfnError
    file: str
    line: int


class Tracer(ImmutableArray):
    """A value of the Program being traced: an immutable array.

    Attributes:
        frame: the function being traced.
        atom: the Var or Literal of the Program that the Tracer stands for.
        value: the array itself if it is known, else None.
        location: the user's line that made the Tracer.
    """

    __slots__ = ("atom", "frame", "location", "value")
    __array_priority__ = 1000

    KIND = "that is being traced"
    CHANGED = "while tracing"
    REFUSED = "cannot be traced: arrayfn.numpy has no such function"

    def __init__(
        self,
        frame: Owner,
        atom: Atom,
        value: Any,
        location: SourceLocation | None,
    ) -> None:
        """Set the attributes; see the class."""
        self.frame = frame
        self.atom = atom
        self.value = value
        self.location = location

    @property
    @override
    def type(self) -> ArrayType:
        """Shape, dtype and layout."""
        return self.atom.type

    # Every operation of a trace reads the shape, so this does not call ``type``.

    @property
    @override
    def shape(self) -> Shape:
        """The extents of the axes."""
        return self.atom.type.shape

    @property
    @override
    def dtype(self) -> DType:
        """The data type."""
        return self.atom.type.dtype

    @property
    def device(self) -> str:
        """The device's name, for the array API: "cpu", as no device is known yet."""
        return "cpu"

    @property
    def _numba_type_(self) -> Any:
        """The Numba type, which Numba reads when a compiled function is called."""
        return import_module(Namespace.numba_module).type_of_traced()

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

    @override
    def concrete(self, wanted: str, remedy: str) -> Any:
        """Return the value as a NumPy array; AbstractValueError if it is unknown.

        For the message, ``wanted`` names what asks for the value, and ``remedy`` says
        what to write instead.
        """
        if isinstance(self.value, ArrayOnDevice):
            return np.asarray(self.value)
        if self.value is not None:
            return self.value
        made = f" It was made at {self.location}." if self.location else ""
        raise self._refused(
            AbstractValueError(
                f"{wanted} needs the value of an array that is only known as "
                f"{self.type} while {self.frame.name!r} is traced.{made} {remedy}",
                user_location(),
            )
        )

    def _refused(self, error: ArrayfnError) -> ArrayfnError:
        """Return ``error``, and store it in the frame's ``refused``.

        It is stored with the innermost line of the stack outside this module.
        """
        asking = sys._getframe(1)
        while asking.f_back is not None and asking.f_code.co_filename == __file__:
            asking = asking.f_back
        self.frame.refused = Refused(error, asking.f_code.co_filename, asking.f_lineno)
        return error

    def _number(self, kind: Callable[[Any], Any]) -> Any:
        """Return ``kind`` of the value, a Python number; refuse implicit conversions.

        ``kind`` is int, float or complex. ``__float__`` and the like call this.
        """
        asking = sys._getframe(2)  # the caller of __float__
        error = refused_conversion(asking)
        if error is not None:
            raise self._refused(error)
        return kind(self.concrete(f"{kind.__name__}()", _SCALAR_REMEDY))

    def __bool__(self) -> bool:
        """Return the truth value. Raises AbstractValueError without a value."""
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
        """Return the value as a float; refuse implicit conversions."""
        return self._number(float)

    def __int__(self) -> int:
        """Return the value as an int; of floats, refuse implicit conversions."""
        if self.dtype in dtypes.DIFFERENTIABLE:
            return self._number(int)
        return int(self.concrete("int()", _SCALAR_REMEDY))

    def __index__(self) -> int:
        """Return the value as an int. Raises AbstractValueError without a value."""
        return self.concrete("an index or a shape", _INDEX_REMEDY).__index__()

    def __complex__(self) -> complex:
        """Return the value as a complex; refuse implicit conversions."""
        return self._number(complex)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Raise ArgumentError: a traced value is not converted to a NumPy array."""
        # Even where the value is known: results computed from a plain array would lose
        # the derivative silently.
        raise self._refused(
            ArgumentError(
                f"a traced value ({self.type}) is not converted to a NumPy array: what "
                "is computed from that would not be traced. Use functions of "
                "arrayfn.numpy (asarray and stack among them), or NumPy's that take "
                "arrays as they are; to index a NumPy array by it, "
                "arrayfn.numpy.asarray(array)[index]; x.value is the array alone, if "
                "it is known",
                user_location(),
            )
        )

    @override
    def __setitem__(self, index: Any, value: Any) -> None:
        """Raise InPlaceError, except for ``array_api_extra.at``.

        That function updates arrays by ``x[index] = value`` on a local variable ``x``,
        which it returns. If the caller is this function, and a copy is allowed, the
        caller's local variables that are this Tracer are set to an updated copy.
        """
        caller = sys._getframe(1)
        is_update = caller.f_globals.get("__name__", "").endswith(_ARRAY_API_EXTRA)
        if not is_update or caller.f_locals.get("copy") is False:
            super().__setitem__(index, value)
        functions = namespace().functions
        new = functions["astype"](functions["asarray"](value), self.dtype)
        mask = isinstance(index, bool) or (
            getattr(index, "dtype", None) == np.bool_ and index.shape == self.shape
        )
        updated = (
            functions["where"](index, new, self)
            if mask and not new.ndim
            else self.at[index].set(new)
        )
        local = caller.f_locals
        local.update({name: updated for name, x in local.items() if x is self})
        if sys.version_info < (3, 13):  # later, f_locals are the variables themselves
            as_object = ctypes.py_object(caller)
            ctypes.pythonapi.PyFrame_LocalsToFast(as_object, ctypes.c_int(0))

    def __copy__(self) -> Tracer:
        """Return this object, which is immutable."""
        return self

    def __deepcopy__(self, memo: Any) -> Tracer:
        """Return this object, which is immutable."""
        return self

    @override
    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise ArgumentError: a traced value cannot be pickled."""
        raise ArgumentError(
            f"a traced value ({self.type}) cannot be pickled: it is of use only while "
            f"{self.frame.name!r} is traced. Pass arrays to other processes, and trace "
            "the function there",
            user_location(),
        )

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tracer:
        """Return ``self``: a traced value has no device yet. For the array API."""
        return self

    def item(self, *index: int) -> Any:
        """Return the Python scalar at ``index``; AbstractValueError without a value."""
        return self.concrete("item()", _SCALAR_REMEDY).item(*index)

    def tolist(self) -> Any:
        """Return nested lists of elements; AbstractValueError without a value."""
        return self.concrete("tolist()", _SCALAR_REMEDY).tolist()

    def tobytes(self, order: str = "C") -> bytes:
        """Return the bytes of all elements; AbstractValueError without a value."""
        return self.concrete("tobytes()", _SCALAR_REMEDY).tobytes(order)

    @override
    def __repr__(self) -> str:
        """Return the value, or without one the type."""
        if self.value is not None:
            return f"Tracer({self.value!r})"
        return f"Tracer<{self.type}>"

    @override
    def __str__(self) -> str:
        """Return the value as text, or without one the type."""
        return str(self.value) if self.value is not None else repr(self)

    @override
    def __format__(self, spec: str) -> str:
        """Format the value; without a value, ignore specs of numbers, as ".3f"."""
        if self.value is not None:
            return format(self.value, spec)
        return format(repr(self), spec if spec.isalpha() and spec == "s" else "")

    @override
    def __hash__(self) -> int:
        """Raise ArgumentError: ``==`` compares elements, so there is no hash."""
        raise ArgumentError(
            f"a traced value ({self.type}) is not hashable: it cannot be a key of a "
            "dict or set, or a static argument",
            user_location(),
        )
