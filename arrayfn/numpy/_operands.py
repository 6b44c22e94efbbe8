"""Promotes and broadcasts the operands of the public functions.

Elementwise equations take operands of one dtype, and of one shape or rank 0. NumPy's
implicit conversions become equations here: Python scalars become Literals of the
promoted dtype, arrays are converted, and ``broadcast_in_dim`` makes the shapes equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeGuard, cast

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.array_likes import adopted
from arrayfn.backends.registry import device_names, get_backend, has_backend
from arrayfn.dtypes import DType
from arrayfn.errors import (
    ArgumentError,
    ArrayfnError,
    AxisError,
    DTypeError,
    RangeError,
    ShapeError,
    plural,
    user_location,
)
from arrayfn.ir import (
    ArrayType,
    Literal,
    NamedSharding,
    PartitionSpec,
    type_of,
    why_not_an_array,
)
from arrayfn.ir.layout import Shape
from arrayfn.primitives import conversion, views
from arrayfn.primitives.base import Primitive
from arrayfn.primitives.reshard import reshard
from arrayfn.primitives.rules import as_list
from arrayfn.tracing import (
    ArrayOnDevice,
    ImmutableArray,
    Tracer,
    apply,
    constant,
    device_of,
    is_made_of_equations,
    is_staged,
)
from arrayfn.tracing.meshes import over_mesh

# A NumPy array, or a Tracer inside a traced function, which type checkers take for one.
# Operands may be numbers too.
Array: TypeAlias = np.ndarray[Any, Any]
ArrayLike: TypeAlias = Any
DTypeLike: TypeAlias = Any
Axis: TypeAlias = int | tuple[int, ...] | None

_MESSAGE_LENGTH = 40


def type_of_operand(name: str, x: ArrayLike) -> ArrayType:
    """Return the type of an operand of the function ``name``.

    The operand is an array (also of another library) or a number. Raises ArgumentError
    for other objects.
    """
    if isinstance(x, (ImmutableArray, Literal)):
        return x.type
    if isinstance(x, (np.ndarray, np.generic)) or dtypes.is_python_scalar(x):
        try:
            return type_of(x)
        except TypeError as error:
            why, message = why_not_an_array(x), getattr(error, "message", error)
            text = f"{name} was given {why}" if why else f"{name}: {message}"
            raise ArgumentError(text, user_location()) from None
    converted = adopted(x)  # an array of another library, as one of arrayfn's
    if converted is not x:
        return type_of_operand(name, converted)
    text = repr(x)
    if len(text) > _MESSAGE_LENGTH:
        text = text[: _MESSAGE_LENGTH - 3] + "..."
    # Sparse matrices do not become dense implicitly.
    is_sparse = hasattr(x, "toarray")
    converter = "its method toarray" if is_sparse else "arrayfn.numpy.asarray"
    raise ArgumentError(
        f"{name} takes arrays and numbers, not {type(x).__name__} ({text}); convert it "
        f"with {converter}",
        user_location(),
    )


def scalar(value: Any, dtype: DType, weak: bool = False) -> Literal:
    """Return the Literal of a Python scalar; RangeError if ``dtype`` cannot hold it.

    With ``weak``, the Literal is weakly typed, like a Python number.
    """
    dtypes.check_numeric(dtype)
    if dtype in dtypes.INTEGERS or dtype in dtypes.INT4:
        limits = dtypes.limits(dtype)
        if not limits.min <= value <= limits.max:
            raise RangeError(
                f"Python integer {value} out of bounds for {dtype}, which holds "
                f"{limits.min} to {limits.max}; convert the array first, with .astype",
                user_location(),
            )
    plain = conversion.literal(value, dtype)
    return Literal(plain.value, dtype, weak) if weak else plain


def convert(x: ArrayLike, dtype: DType, weak: bool = False) -> ArrayLike:
    """Return ``x`` converted to ``dtype``, or ``x`` itself if it has that dtype.

    Python numbers become Literals. ``weak`` marks the result as weakly typed: it comes
    from Python numbers, and takes the dtype of arrays that it is combined with.
    """
    if is_number(x):
        return scalar(number_in(x), dtype, weak)
    x = x if type(x) is np.ndarray else adopted(x)
    if x.dtype == dtype:
        return x
    dtypes.check_numeric(dtype)
    if weak:
        return apply(conversion.convert_element_type, x, dtype=dtype, weak=True)
    return apply(conversion.convert_element_type, x, dtype=dtype)


def promoted(
    name: str, operands: Sequence[ArrayLike], dtype: DType | None = None
) -> tuple[list[ArrayLike], list[ArrayType], DType]:
    """Convert ``operands`` to one dtype.

    Returns the converted operands, their types before the conversion, and the dtype.
    The dtype is ``dtype``, or by default the one to which the operands promote. Python
    numbers become Literals. Errors call the function ``name``.
    """
    arrays: list[ArrayLike] = []
    types: list[ArrayType] = []
    has_number = False
    for x in operands:  # a loop: most operands are traced values
        if isinstance(x, ImmutableArray):
            types.append(x.type)
        else:
            x = x if type(x) is np.ndarray else adopted(x)
            types.append(type_of_operand(name, x))
            has_number = has_number or is_number(x)
        arrays.append(x)
    if dtype is None and not has_number:
        common = types[0].dtype
        # Arrays of one dtype need no conversion. A list is faster than a generator.
        if all([t.dtype == common for t in types]):  # noqa: C419
            return arrays, types, common
    weak = False
    if dtype is None:
        dtype, weak = dtypes.promote((t.dtype, t.weak) for t in types)
    converted = [
        scalar(number_in(x), dtype, weak) if is_number(x) else convert(x, dtype, weak)
        for x in arrays
    ]
    return converted, types, dtype


def is_array(x: Any) -> TypeGuard[Array]:
    """Return whether x is an array, of NumPy, on a device or traced."""
    return isinstance(x, (ImmutableArray, np.ndarray))


def is_number(x: ArrayLike) -> bool:
    """Return whether ``x`` is a Python number or a Literal."""
    return type(x) is not np.ndarray and (
        isinstance(x, Literal) or dtypes.is_python_scalar(x)
    )


def number_in(x: ArrayLike) -> Any:
    """Return the value of ``x``, a Python number or a Literal."""
    return x.value if isinstance(x, Literal) else x


def common_dtype(name: str, operands: Sequence[ArrayLike]) -> DType:
    """Return the dtype that ``operands`` promote to."""
    types = [type_of_operand(name, x) for x in operands]
    dtype, _ = dtypes.promote((t.dtype, t.weak) for t in types)
    return dtype


def broadcast_shape(name: str, shapes: Sequence[Shape]) -> Shape:
    """Return the shape that ``shapes`` broadcast to; ShapeError if they do not.

    Errors call the function ``name``.
    """
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        shapes_text = ", ".join(str(shape) for shape in shapes)
        raise ShapeError(
            f"{name}: shapes {shapes_text} do not broadcast together{_remedy(shapes)}",
            user_location(),
        ) from None


def _remedy(shapes: Sequence[Shape]) -> str:
    """Return an addition to an error about two shapes that do not broadcast, or "".

    If the shorter shape matches the leading axes of the longer one, new trailing axes
    make the shapes fit: (3,) and (3, 4) become (3, 1) and (3, 4).
    """
    if len(shapes) != 2:
        return ""
    short, long = sorted(shapes, key=len)
    trailing = len(long) - len(short)
    leading_pairs = zip(short, long, strict=False)
    if not trailing or not all(n in (1, m) or m == 1 for n, m in leading_pairs):
        return ""
    index = ", ".join([":"] * len(short) + ["None"] * trailing)
    return f"; x[{index}] makes {(*short, *[1] * trailing)} of {short}, which does"


def spread(x: ArrayLike, have: Shape, shape: Shape, staged: bool) -> ArrayLike:
    """Broadcast ``x`` from shape ``have`` to ``shape``.

    If ``staged``, this emits an equation. Otherwise, the result is a NumPy view.
    """
    if have == shape:
        return x
    if not staged:
        value = as_array(x)
        return np.broadcast_to(value, shape)
    axes = tuple(range(len(shape) - len(have), len(shape)))
    return apply(views.broadcast_in_dim, x, shape=shape, axes=axes)


def from_lists(x: Any) -> Any:
    """Convert nested lists or tuples of numbers to an array; others stay as is."""
    return np.asarray(x) if isinstance(x, (list, tuple)) else x


def as_array(x: ArrayLike) -> ArrayLike:
    """Convert a Literal, or an array of another library, to an array.

    Other arrays, and traced values, are returned unchanged.
    """
    if isinstance(x, Literal):
        return np.asarray(x.value).astype(x.type.dtype)
    return adopted(x)


def broadcast(
    name: str, operands: Sequence[ArrayLike], types: Sequence[ArrayType]
) -> list[ArrayLike]:
    """Broadcast ``operands`` of these ``types`` to one shape, except those of rank 0.

    Elementwise equations take operands of rank 0 as they are. Raises ShapeError, about
    the function ``name``, if the shapes do not broadcast.
    """
    if len(operands) == 1 or len({t.shape for t in types if t.shape}) <= 1:
        return list(operands)
    shape = broadcast_shape(name, [t.shape for t in types])
    staged = is_made_of_equations(operands)
    return [
        spread(x, t.shape, shape, staged) if t.shape else x
        for x, t in zip(operands, types, strict=True)
    ]


def elementwise(
    primitive: Primitive,
    name: str,
    *operands: ArrayLike,
    dtype: DType | None = None,
    of_bools: Primitive | None = None,
    of_complex: Callable[..., Array] | None = None,
) -> Array:
    """Apply ``primitive`` to ``operands``, promoted (or converted to ``dtype``).

    The operands are also broadcast. If they promote to bool, the primitive ``of_bools``
    is applied instead, if given. If they promote to a complex dtype, ``of_complex``, a
    function of the operands, is called instead, if given. Errors call the function
    ``name``.
    """
    if dtype is None and _are_alike(operands):
        converted, common = operands, operands[0].dtype
    else:
        converted, types, common = promoted(name, operands, dtype)
        converted = broadcast(name, converted, types)
    if of_bools is not None and common == dtypes.bool_:
        primitive = of_bools
    if of_complex is not None and common in dtypes.COMPLEX:
        return of_complex(*converted)
    return apply(primitive, *converted)


def _are_alike(operands: Sequence[ArrayLike]) -> bool:
    """Return whether ``operands`` are NumPy arrays of one shape and one known dtype.

    Such operands need no promotion and no broadcasting.
    """
    first = operands[0]
    if type(first) is not np.ndarray or first.dtype not in dtypes.SHORT_NAMES:
        return False
    for x in operands[1:]:
        if type(x) is not np.ndarray or x.dtype != first.dtype:
            return False
        if x.shape != first.shape:
            return False
    return True


def inexact_dtype(name: str, dtype: DType) -> DType:
    """Return ``dtype`` if it is a float or complex, else float64.

    Raises DTypeError, about the function ``name``, for a storage type such as float8.
    """
    if dtype in dtypes.STORAGE:
        raise dtypes.storage_error(name, dtype)
    return dtype if dtype in dtypes.INEXACT else dtypes.float64


def floating_dtype(dtype: DType) -> DType:
    """Return the floating-point dtype to which NumPy's float functions convert.

    Inexact dtypes stay. Bools and 8-bit integers become float16, 16-bit integers
    float32, and wider integers float64. Raises DTypeError for a storage type.
    """
    if dtype in dtypes.INEXACT:
        return dtype
    if dtype in dtypes.STORAGE:
        raise dtypes.storage_error("a function of floating-point numbers", dtype)
    if dtype.itemsize == 1:
        return dtypes.float16
    return dtypes.float32 if dtype.itemsize == 2 else dtypes.float64


def floating(primitive: Primitive, name: str, *operands: ArrayLike) -> Array:
    """Apply ``primitive`` like ``elementwise``, but convert integers to floats first.

    The float dtype depends on the width of the integers, as in NumPy
    (``floating_dtype``).
    """
    return apply(primitive, *floated(name, *operands))


def as_floating(name: str, x: ArrayLike) -> ArrayLike:
    """Convert ``x`` to a floating-point dtype (``floating_dtype``)."""
    return convert(x, floating_dtype(type_of_operand(name, x).dtype))


def floated(name: str, *operands: ArrayLike) -> list[ArrayLike]:
    """Return ``operands`` promoted to one floating-point dtype, and broadcast."""
    converted, types, dtype = promoted(name, operands)
    if dtype not in dtypes.INEXACT:
        # Choose the float dtype of each operand first: int8 and int16 give float32.
        # But a Python int makes bools int64.
        only_bools = all(t.weak or t.dtype == dtypes.bool_ for t in types)
        wide, weak = dtypes.promote(
            (floating_dtype(dtype if only_bools else t.dtype), t.weak) for t in types
        )
        converted = [convert(x, wide, weak) for x in converted]
    return broadcast(name, converted, types)


def is_sharding(device: Any) -> bool:
    """Return whether a parameter ``device`` asks for an array over a mesh."""
    return isinstance(device, (NamedSharding, PartitionSpec))


def placed(name: str, x: Any, device: Any) -> Any:
    """Move ``x``, made by function ``name``, to ``device`` (None: leave it).

    ``device`` is a backend's name; a Device, which stands for the backend that computes
    on it; a NamedSharding; or a PartitionSpec over the mesh of ``set_mesh``. Inside
    ``jit`` the function's device decides, and a sharding is a constraint. Raises
    ArgumentError for an unknown device, ShapeError if a sharding cannot cut ``x``.
    """
    if is_sharding(device):
        sharding: NamedSharding = over_mesh(f"{name}: device", device)
        if is_staged((x,)):
            return apply(reshard, x, mesh=sharding.mesh, spec=sharding.spec)
        from arrayfn.distributed.arrays import put_sharded

        return put_sharded(x, sharding)
    device = getattr(device, "backend", device)
    if device is not None and not (isinstance(device, str) and has_backend(device)):
        known = ", ".join(map(repr, device_names()))
        raise ArgumentError(
            f"{name} makes arrays on one of {known}, or over a mesh by a "
            f"NamedSharding, not on {device!r}",
            user_location(),
        )
    if device is None or is_staged((x,)):
        return x
    if isinstance(x, ArrayOnDevice):
        return x.to_device(device)
    return x if device == "cpu" else get_backend(device).put(as_array(x))


def beside(result: Any, *operands: ArrayLike) -> Any:
    """Move ``result`` to where its ``operands`` are, and return it.

    ``result`` is a NumPy array or a tuple of arrays. If an operand is traced, they
    become constants of the traced function. If an operand is on a device, they are
    copied there.
    """
    if any(isinstance(x, Tracer) for x in operands):
        return tree.map(constant, result)
    device = device_of(operands)
    return tree.map(get_backend(device).put, result) if device else result


def whole(value: Any) -> int:
    """Return an integer of Python or NumPy as a Python int.

    Raises ArgumentError for other values, and arrayfn's own error for a traced value.
    """
    try:
        return value.__index__()
    except ArrayfnError:
        raise
    except (AttributeError, TypeError):
        raise ArgumentError(
            f"a size, an axis or a count must be an integer, not {value!r}",
            user_location(),
        ) from None


def normalize_axis(name: str, axis: Any, ndim: int) -> int:
    """Return ``axis`` counted from the front; AxisError if there is no such axis.

    ``ndim`` is the number of axes. Errors call the function ``name``.
    """
    position = whole(axis)
    if not -ndim <= position < ndim:
        raise AxisError(
            f"{name}: axis {position} is out of bounds for an array with "
            f"{plural(ndim, 'axis')}",
            user_location(),
        )
    return position % ndim


def each_axis(name: str, axes: int | Sequence[int], ndim: int) -> list[int]:
    """Return ``axes``, an axis or several, as a list, counted from the front.

    Raises AxisError, about the function ``name``, if there is no such axis of ``ndim``.
    """
    return [normalize_axis(name, axis, ndim) for axis in as_list(axes)]


def normalize_axes(name: str, axis: Axis, ndim: int) -> tuple[int, ...]:
    """Return ``axis`` as a tuple of ascending axes, counted from the front.

    ``axis`` is an axis, several axes, or None for all. Raises AxisError if there is no
    such axis of ``ndim``, and ShapeError if one repeats. Errors call the function
    ``name``.
    """
    if axis is None:
        return tuple(range(ndim))
    axes = sorted(each_axis(name, axis, ndim))
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{name}: an axis repeats in {axis}", user_location())
    return tuple(axes)


def full(value: Any, shape: Shape, dtype: DType, like: ArrayLike = 0) -> Array:
    """Return an array filled with a scalar ``value``, on the device of ``like``."""
    filler = scalar(value, dtype) if dtypes.is_python_scalar(value) else value
    if isinstance(like, ArrayOnDevice):
        filler = beside(as_array(filler), like)
    return apply(views.broadcast_in_dim, filler, shape=shape, axes=())


def same(x: ArrayLike) -> Array:
    """Return ``x`` itself if it is traced or on a device, else a copy.

    Traced values and device arrays are immutable, so they need no copy.
    """
    if isinstance(x, ImmutableArray):
        return cast(Array, x)
    value = as_array(x)
    return np.array(value, order="C")


def refuse_out(name: str, out: object) -> None:
    """Raise ArgumentError if ``out`` is given, as functions always make new arrays."""
    if out is not None:
        raise ArgumentError(
            f"{name} returns a new array and cannot write into out; leave out out=, "
            f"or write y[...] = {name}(...)",
            user_location(),
        )


def check_order(name: str, order: object) -> None:
    """Raise ArgumentError unless ``order`` allows row-major arrays.

    ``order`` is NumPy's parameter. New arrays are always row-major.
    """
    if order not in ("C", "K", "A", None):
        raise ArgumentError(
            f"{name} makes row-major arrays, for which order is 'C', 'K' or 'A', not "
            f"{order!r}; the transpose of a row-major array is column-major",
            user_location(),
        )


def check_cast(
    name: str, types: Sequence[ArrayType], dtype: DType, casting: str
) -> None:
    """Raise DTypeError if ``casting``, one of NumPy's rules, forbids a conversion.

    ``types`` are those of operands that are converted to ``dtype``. Python numbers,
    whose types are weak, may always be converted.
    """
    for type in types:
        if not type.weak and not np.can_cast(type.dtype, dtype, casting):  # pyright: ignore[reportArgumentType]
            raise DTypeError(
                f"{name}: {type} does not convert to {dtype} under casting={casting!r}",
                user_location(),
            )


def is_row_major(name: str, order: str) -> bool:
    """Return whether ``order`` is "C"; raises ArgumentError if it is not "F" either."""
    if order not in ("C", "F"):
        raise ArgumentError(
            f"{name}: order must be 'C' or 'F', not {order!r}; results do not depend "
            "on how arrays lie in memory",
            user_location(),
        )
    return order == "C"


def as_shape(name: str, shape: Any) -> Shape:
    """Return ``shape``, an integer or a sequence of them, as a tuple of ints.

    Raises ShapeError, about the function ``name``, for a negative extent.
    """
    if isinstance(shape, np.ndarray) and shape.ndim == 1:
        shape = shape.tolist()
    extents = tuple(whole(entry) for entry in as_list(shape))
    if any(extent < 0 for extent in extents):
        raise ShapeError(
            f"{name}: negative extents are not allowed in shape {extents}",
            user_location(),
        )
    return extents
