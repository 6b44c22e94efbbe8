"""Checks the arguments of functions, and names their leaves in errors."""

from __future__ import annotations

import dataclasses
import inspect
import operator
import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any, Final

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.array_likes import adopted
from arrayfn.errors import (
    ArgumentError,
    ShapeError,
    SourceLocation,
    is_users,
    user_location,
)
from arrayfn.ir import ArrayType, type_of, why_not_an_array
from arrayfn.tracing import ArrayOnDevice, ImmutableArray, Tracer
from arrayfn.tracing.frames import current_frame
from arrayfn.tracing.references import Ref
from arrayfn.transforms.shape_struct import ShapeDtypeStruct

Function = Callable[..., Any]


def is_array(leaf: Any) -> bool:
    """Whether ``leaf`` is a number or an array, of any dtype."""
    return (
        isinstance(leaf, (np.ndarray, np.generic, ImmutableArray))
        or dtypes.is_python_scalar(leaf)
        or hasattr(leaf, "__arrayfn_type__")
        or hasattr(leaf, "__array__")
        or hasattr(leaf, "__dlpack__")
    )


def is_fixed(leaf: Any) -> bool:
    """Whether an argument reaches the function as it is, so that code may branch on it.

    It is neither mapped nor differentiated. Arrays are traced, and so are NumPy's
    scalars and floats, except inside ``jit``, where a traced one would have no value.
    """
    if isinstance(leaf, (int, float, complex, np.number, np.bool_)):
        frame = current_frame()
        is_integer = isinstance(leaf, int)
        return is_integer or (frame is not None and frame.abstract)
    return not is_array(leaf)


def check_leaf(leaf: Any, what: str | Callable[[], str]) -> None:
    """Raise ArgumentError unless ``leaf``, called ``what``, is an array or a number."""
    if isinstance(leaf, Tracer):
        leaf.check_alive(current_frame())
        return
    if dtypes.is_python_scalar(leaf) or hasattr(leaf, "__arrayfn_type__"):
        return
    leaf = adopted(leaf)
    if hasattr(leaf, "__arrayfn_type__"):
        return
    is_array = isinstance(leaf, (np.ndarray, np.generic))
    why = why_not_an_array(leaf)
    if is_array and not why and leaf.dtype in dtypes.ALL:
        return
    name = what if isinstance(what, str) else what()
    if why:
        raise ArgumentError(f"{name} is {why}", user_location())
    if is_array:
        raise ArgumentError(
            f"{name} is an array of {leaf.dtype}, which arrayfn does not have; "
            "convert it, or make the argument static (jit(f, static_argnums=...))",
            user_location(),
        )
    if isinstance(leaf, Ref):
        raise ArgumentError(
            f"{name} is a Ref ({leaf.type}), which is not an array; ref[...] is the "
            "one that it holds",
            user_location(),
        )
    if dataclasses.is_dataclass(leaf) or hasattr(leaf, "__attrs_attrs__"):
        raise ArgumentError(
            f"{name} is {type(leaf).__name__} ({short(leaf)}), a dataclass that is not "
            "registered as a tree of its fields; decorate it with "
            "@tree.register_dataclass",
            user_location(),
        )
    raise ArgumentError(
        f"{name} is {type(leaf).__name__} ({short(leaf)}), not an array or number; "
        "convert it with arrayfn.numpy.asarray, or make the argument static "
        "(jit(f, static_argnums=...))",
        user_location(),
    )


def with_own_arrays(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[Any], tree.TreeDef]:
    """Convert arrays of other libraries in ``args`` and ``kwargs``, without copies.

    Returns ``args``, ``kwargs``, their leaves, and the structure of the pair.
    """
    foreign, structure = tree.flatten_arguments((args, kwargs))
    leaves = [adopted(x) for x in foreign]
    if not all(map(operator.is_, leaves, foreign)):  # only if a leaf was converted
        args, kwargs = tree.unflatten(structure, leaves)
    return args, kwargs, leaves, structure


def check_leaves(
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Any],
) -> None:
    """Raise ArgumentError unless every leaf of the arguments is an array or number.

    ``leaves`` are those of the pair (``args``, ``kwargs``).
    """
    where = leaf_names((args, kwargs))
    for position, leaf in enumerate(leaves):
        if type(leaf) is np.ndarray and leaf.dtype in dtypes.ALL:
            continue
        check_leaf(leaf, lambda k=position: f"{shown_name(function)}: {where(k)}")


def check_function(name: str, function: Any) -> None:
    """Raise ArgumentError unless ``function``, given to ``name``, can be called."""
    if not callable(function):
        raise ArgumentError(
            f"{name} takes a function, not {type(function).__name__} "
            f"({short(function)})",
            user_location(),
        )
    if isinstance(function, staticmethod):
        raise ArgumentError(
            f"{name} takes the function itself, not a staticmethod; write "
            f"@staticmethod above @{name}",
            user_location(),
        )
    if inspect.isgeneratorfunction(function):
        raise ArgumentError(
            f"{name} takes a function that returns arrays, not the generator function "
            f"{shown_name(function)}; return a tuple",
            user_location(),
        )


_MISMATCH: Final = re.compile(r"\S+\(\) (missing \d|takes |got )")


def raise_mismatch(error: TypeError) -> None:
    """Raise ArgumentError if ``error`` says that a call does not fit a signature.

    Only if it comes from a call that arrayfn made: no frame of the traceback is the
    user's. Otherwise return, so that the caller raises ``error`` itself.
    """
    if error.__traceback__ is None or not _MISMATCH.match(str(error)):
        return
    frames = traceback.walk_tb(error.__traceback__)
    if not any(is_users(frame.f_code.co_filename) for frame, _ in frames):
        text = str(error).replace("<locals>.", "")
        raise ArgumentError(
            f"{text}; give the function the arguments that it takes", user_location()
        ) from None


def is_one(numbers: Any) -> bool:
    """Whether ``numbers`` is one integer, of Python or NumPy."""
    return isinstance(numbers, Integral)


def as_numbers(numbers: int | Iterable[int] | None) -> tuple[int, ...]:
    """Return an integer, or several, as a tuple of Python's; empty for None.

    >>> as_numbers(2), as_numbers([0, 1]), as_numbers(None)
    ((2,), (0, 1), ())
    """
    if numbers is None:
        return ()
    try:
        several = numbers if isinstance(numbers, Iterable) else (numbers,)
        return tuple(map(operator.index, several))
    except TypeError:
        raise ArgumentError(
            f"arguments are named by their positions, integers, not {numbers!r}",
            user_location(),
        ) from None


def positions_of(
    what: str, function: Function, names: str | Iterable[str]
) -> tuple[int, ...]:
    """Return the positions of ``function``'s parameters ``names``.

    Raises ArgumentError if one is not there; ``what`` is the option that names it.
    """
    if not names:
        return ()
    parameters = list(inspect.signature(function).parameters)
    named = [names] if isinstance(names, str) else list(names)
    for name in named:
        if name not in parameters:
            raise ArgumentError(
                f"{what} names {name!r}, but {shown_name(function)} has the parameters "
                f"{', '.join(parameters)}",
                user_location(),
            )
    return tuple(parameters.index(name) for name in named)


def short(value: Any) -> str:
    """Return the beginning of ``repr(value)``."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def leaf_type(leaf: Any) -> ArrayType:
    """Return the type of an argument or result leaf."""
    return leaf.type if isinstance(leaf, ImmutableArray) else type_of(adopted(leaf))


def value_of(leaf: Any) -> Any:
    """Return the array of ``leaf``; None if it is a traced value that is not known."""
    if isinstance(leaf, Tracer):
        return leaf.value
    if isinstance(leaf, ShapeDtypeStruct):
        return None
    array = adopted(leaf)
    return array if isinstance(array, ArrayOnDevice) else np.asarray(array)


def own_name(function: Function) -> str:
    """Return the name that ``function`` was defined with, or that of its class."""
    return getattr(function, "__name__", type(function).__name__)


def name_of(function: Function) -> str:
    """Return the name of ``function`` in Programs: an identifier."""
    name = own_name(function)
    return name if name.isidentifier() else "function"


def shown_name(function: Function) -> str:
    """Return the name of ``function`` in messages.

    That of a lambda has its first line.
    """
    name = own_name(function)
    return name if name.isidentifier() else described(function)


def described(function: Function) -> str:
    """Describe a function in messages: its name and its first line."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    name = own_name(function)
    if code is None:
        return name
    return f"{name} ({SourceLocation(code.co_filename, code.co_firstlineno)})"


def like(leaf_name: str, position: int, wanted: ArrayType, value: Any) -> Any:
    """Check that ``value`` has the type ``wanted``, and return it.

    A Python number is converted to the dtype of ``wanted``. Error messages call the
    value ``leaf_name position``, such as "tangent 2".
    """
    value = adopted(value)
    check_leaf(value, f"{leaf_name} {position}")
    if dtypes.is_python_scalar(value) and not (
        isinstance(value, complex) and wanted.dtype not in dtypes.COMPLEX
    ):
        value = np.asarray(value, wanted.dtype)
    actual = leaf_type(value)
    if (actual.shape, actual.dtype) != (wanted.shape, wanted.dtype):
        raise ShapeError(
            f"{leaf_name} {position} is {actual}, but the value that it belongs to is "
            f"{wanted}",
            user_location(),
        )
    extra = sorted(actual.varying - wanted.varying)
    if extra:
        raise ArgumentError(
            f"{leaf_name} {position} varies along the mesh axis {extra[0]!r}, but the "
            f"value that it belongs to does not; mark that with lax.pvary(x, "
            f"{extra[0]!r})",
            user_location(),
        )
    return value


def hints(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[str]:
    """Return a name for each leaf: ``x``, or ``params_w`` for ``params["w"]``.

    The leaves are those of the pair (``args``, ``kwargs``). A name is empty if there is
    none that is a short identifier.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in kinds]
    hints: list[str] = []
    for position, argument in enumerate(args):
        stem = names[position] if position < len(names) else ""
        hints += [_identifier(stem, path) for path in tree.paths(argument)]
    for key in sorted(kwargs):
        hints += [_identifier(key, path) for path in tree.paths(kwargs[key])]
    return hints


def _identifier(stem: str, path: str) -> str:
    """Join ``stem`` and a ``path`` such as ``["w"]`` into an identifier.

    Empty if that is impossible, if it has more than 24 characters, or if ``stem`` is
    empty.
    """
    name = re.sub(r"\W+", "_", stem + path).strip("_") if stem else ""
    return name if name.isidentifier() and len(name) <= 24 else ""


def leaf_names(arguments: Any) -> Callable[[int], str]:
    """Make the function that names leaf number k of ``arguments`` in messages.

    ``arguments`` is a pair (args, kwargs).
    """

    def name(position: int) -> str:
        """Return the name of a leaf, such as "argument 2['w']"."""
        # "[0]" of the pair (args, kwargs), then "[2]", then where in that argument.
        path = tree.paths(arguments)[position]
        first, _, rest = path[len("[0][") :].partition("]")
        word = "argument" if path.startswith("[0]") else "keyword argument"
        return f"{word} {first}{rest}"

    return name
