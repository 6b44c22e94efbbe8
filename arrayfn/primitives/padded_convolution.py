"""padded_convolution: a convolution with zero padding, and both of its cotangents.

The sum of all products ``output[i] * operand[j] * kernel[k]`` that a convolution pairs
is linear in each of the three arrays. The primitive takes two of them and returns the
third: the *output*, which is the convolution, or the cotangent of the *operand* or of
the *kernel*. So it is closed under differentiation, and a library that computes all
three sees strides and padding.

Roles of axes are those of ``conv_general``. ``padding`` has the number of zeros before
and after each spatial axis of the operand. ``extents`` has the result's spatial
extents, which do not follow from the other arrays; it is () for outputs.
``precision="tf32"`` is as in ``dot_general``. Only compilers set ``lies``: the library
accepts the arrays with channels ``"last"`` or ``"first"``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.ir.layout import Shape, ascending
from arrayfn.primitives import conversion, families, slicing
from arrayfn.primitives.base import (
    Array,
    Atoms,
    Batched,
    Composition,
    Dims,
    Linear,
    Operands,
    Primitive,
    Sample,
    Tangents,
    Tolerance,
    value_of,
)
from arrayfn.primitives.convolution import (
    SIDES_NCH,
    SIDES_NHWC,
    conv_general,
    to_kernel,
    to_operand,
    with_mapped,
)
from arrayfn.primitives.convolution_forms import (
    ARRAYS,
    GROUP,
    INNER,
    OUTER,
    SPATIAL,
    Axes,
    Form,
    Roles,
    convolution_factors,
    extents_of,
)
from arrayfn.primitives.emitters import Emitter
from arrayfn.primitives.rules import jvp_of_product, mapped_axes_first

Pads = tuple[tuple[int, int], ...]
ROLES: Final = {"operand": "lhs", "kernel": "rhs", "output": "out"}


_PAIRED_ROLES: Final = {
    "group": (("operand", GROUP), ("kernel", GROUP), ("output", GROUP)),
    "batch": (("operand", OUTER), ("output", OUTER)),
    "contracted": (("operand", INNER), ("kernel", INNER)),
    "free": (("kernel", OUTER), ("output", INNER)),
}
"""The arrays that share axes, with the role that these have in each of them."""


def _check_windows(
    sizes: Mapping[str, Shape], strides: Axes, dilations: Axes, padding: Pads
) -> None:
    """Raise ShapeError unless the output's windows lie in the padded operand.

    ``sizes`` has the spatial extents of operand, kernel and output, by name.
    """
    extents = sizes["operand"], sizes["kernel"], sizes["output"]
    parts = zip(*extents, strides, dilations, padding, strict=True)
    for n, size, count, stride, step, (low, high) in parts:
        if count and (count - 1) * stride + (size - 1) * step >= n + low + high:
            raise ShapeError(
                f"padded_convolution: {count} windows of {size} do not fit into {n} "
                f"elements between {low} and {high} zeros"
            )


def _types(
    first: ArrayType,
    second: ArrayType,
    *,
    gives: str,
    lhs: Roles,
    rhs: Roles,
    out: Roles,
    strides: Axes,
    dilations: Axes,
    padding: Pads,
    extents: Shape,
    precision: str | None = None,
    lies: str | None = None,
) -> ArrayType:
    """Type rule: the type of the array ``gives`` ("output", "operand" or "kernel").

    ``first`` and ``second`` are the types of the two other arrays, in the order of
    ``ARRAYS``. The params are explained in the module's docstring. Raises ShapeError
    where extents that are paired differ, or where windows do not fit.
    """
    name = "padded_convolution"
    families.common_dtype(name, (first, second), dtypes.NUMBERS)
    if gives not in ARRAYS:
        raise ShapeError(f"{name} gives output, operand or kernel, not {gives!r}")
    roles = {"operand": lhs, "kernel": rhs, "output": out}
    given_types = dict(zip(ARRAYS[gives], (first, second), strict=True))
    for array, type in given_types.items():
        axes = sorted(axis for role in roles[array] for axis in role)
        if axes != list(range(type.ndim)):
            raise ShapeError(
                f"{name}: roles {roles[array]} do not name each axis of the {array} "
                f"({type}) once"
            )
    extents_by_role: dict[int, Shape] = {}
    for role_name, roles_of_arrays in _PAIRED_ROLES.items():
        extents_by_array = {
            array: extents_of(given_types[array], roles[array][role])
            for array, role in roles_of_arrays
            if array in given_types
        }
        if len(set(extents_by_array.values())) != 1:
            raise ShapeError(f"{name}: {role_name} axes differ: {extents_by_array}")
        (shape,) = set(extents_by_array.values())
        extents_by_role.update(
            {role: shape for array, role in roles_of_arrays if array == gives}
        )
    sizes = {
        array: extents_of(t, roles[array][SPATIAL]) for array, t in given_types.items()
    }
    if gives == "output":
        geometry = sizes["operand"], sizes["kernel"], strides, dilations, padding
        extents_by_role[SPATIAL] = tuple(
            max(0, (n + low + high - (size - 1) * step - 1) // stride + 1)
            for n, size, stride, step, (low, high) in zip(*geometry, strict=True)
        )
    else:
        extents_by_role[SPATIAL] = sizes[gives] = extents
        _check_windows(sizes, strides, dilations, padding)
    if min((0, *(n for pair in padding for n in pair))) < 0:
        raise ShapeError(f"{name}: padding {padding} must be 0 or more")
    result = [0] * sum(len(role) for role in roles[gives])
    for role, shape in extents_by_role.items():
        for axis, n in zip(roles[gives][role], shape, strict=True):
            result[axis] = n
    return first.with_shape(result)


def _canonical(x: Array, roles: Roles) -> Array:
    """Order the axes of ``x`` by role, and merge the axes of each but the spatial role.

    The result has the axes [group, outer, inner, *spatial].
    """
    ordered = x.transpose([axis for role in roles for axis in role])
    spatial = len(roles[SPATIAL])
    shape = [math.prod(x.shape[axis] for axis in role) for role in roles[:SPATIAL]]
    return ordered.reshape(*shape, *ordered.shape[ordered.ndim - spatial :])


def _reference(first: Array, second: Array, **params: Any) -> Array:
    """Compute the array ``params["gives"]`` from the two others.

    For each element of the kernel's window (a tap), the operand's elements that meet
    the tap are a strided slice ``part``. Then ``y += part @ tap`` for the output,
    ``part += y @ tap`` for the operand and ``tap += part @ y`` for the kernel. The
    slices are views, so the sums are written into the arrays.
    """
    gives, strides, steps = (params[k] for k in ("gives", "strides", "dilations"))
    types = [ArrayType(x.shape, x.dtype) for x in (first, second)]
    result = _types(types[0], types[1], **params)
    compute_dtype = dtypes.compute_dtype(first.dtype)
    arrays = {
        name: _canonical(x.astype(compute_dtype), params[ROLES[name]])
        for name, x in zip(ARRAYS[gives], (first, second), strict=True)
    }
    arrays[gives] = _canonical(
        np.zeros(result.shape, compute_dtype), params[ROLES[gives]]
    )
    padded_operand = np.pad(arrays["operand"], [(0, 0)] * 3 + [*params["padding"]])
    w, y = arrays["kernel"], arrays["output"]
    counts = y.shape[3:]
    # Without output elements there is nothing to add: ndindex(0) is empty.
    for position in np.ndindex(*(w.shape[3:] if 0 not in counts else (0,))):
        part = padded_operand[
            (
                ...,
                *(
                    slice(
                        tap_index * step,
                        tap_index * step + (n - 1) * stride + 1,
                        stride,
                    )
                    for tap_index, step, n, stride in zip(
                        position, steps, counts, strides, strict=True
                    )
                ),
            )
        ]
        tap = w[(..., *position)]
        if gives == "output":
            y += np.einsum("gnc...,gkc->gnk...", part, tap)
        elif gives == "operand":
            part += np.einsum("gnk...,gkc->gnc...", y, tap)
        else:
            flat = [v.reshape(*v.shape[:3], math.prod(counts)) for v in (part, y)]
            tap += np.einsum("gncs,gnks->gkc", *flat)
    if gives == "operand":
        inside = zip(params["padding"], arrays["operand"].shape[3:], strict=True)
        result_array = padded_operand[
            (..., *(slice(low, low + n) for (low, _), n in inside))
        ]
    else:
        result_array = arrays[gives]
    order = [axis for role in params[ROLES[gives]] for axis in role]
    result_array = result_array.reshape([result.shape[axis] for axis in order])
    return np.ascontiguousarray(result_array.transpose(ascending(order))).astype(
        result.dtype
    )


def _third_array(
    arrays: Mapping[str, Atom], gives: str, like: Shape, params: Any
) -> Atom:
    """Emit the array ``gives`` of a convolution from the two others.

    ``gives`` is "output", "operand" or "kernel", and ``arrays`` has the others by name.
    ``like`` is the shape of the result, of which the spatial extents are read.
    ``params`` are the params of another equation of this convolution, of which
    ``gives`` and ``extents`` are replaced.
    """
    first, second = ARRAYS[gives]
    params = {**params, "gives": gives}
    spatial = params[ROLES[gives]][SPATIAL]
    params["extents"] = () if gives == "output" else tuple(like[a] for a in spatial)
    return padded_convolution(arrays[first], arrays[second], **params)


def _transpose(cotangents: Tangents, inputs: Operands, **params: Any) -> Tangents:
    """Transpose rule: the cotangent of one array from ``ct`` and the other array.

    ``sum(output * operand * kernel)`` is linear in each of the three arrays. So the
    cotangent is the array that the primitive gives for ``ct`` in place of the result.
    """
    (ct,) = cotangents
    assert ct is not None
    names = ARRAYS[params["gives"]]
    linear = 0 if isinstance(inputs[0], Linear) else 1
    linear_input, other = (
        inputs[linear],
        value_of(inputs[1 - linear], "padded_convolution"),
    )
    assert isinstance(linear_input, Linear)
    arrays = {params["gives"]: ct, names[1 - linear]: other}
    cotangent = _third_array(arrays, names[linear], linear_input.type.shape, params)
    return [cotangent, None] if linear == 0 else [None, cotangent]


_MAPPED: Final[dict[frozenset[str], dict[str, int]]] = {
    frozenset({"operand", "output"}): {"operand": OUTER, "output": OUTER},
    frozenset({"kernel", "output"}): {"kernel": OUTER, "output": INNER},
    frozenset({"operand", "kernel"}): {"operand": INNER, "kernel": INNER},
    frozenset(ROLES): dict.fromkeys(ROLES, GROUP),
}
"""The role of a mapped axis, by the arrays that have it."""


def _batch(axis_size: int, inputs: Atoms, dims: Dims, **params: Any) -> Batched:
    """The batching rule: the mapped axis becomes a group, batch or channel axis.

    The param ``gives`` names the array that is computed ("output", "operand" or
    "kernel"); the inputs are the other two. ``_MAPPED`` has the axis's role in each
    array, by the arrays that are mapped: one or both inputs, and always the result.
    """
    gives = params["gives"]
    mapped = {
        name for name, dim in zip(ARRAYS[gives], dims, strict=True) if dim is not None
    }
    for name, role in _MAPPED[frozenset({*mapped, gives})].items():
        params[ROLES[name]] = with_mapped(params[ROLES[name]], role)
    return [padded_convolution(*mapped_axes_first(inputs, dims), **params)], [0]


def _expand(first: Atom, second: Atom, **params: Any) -> Atom:
    """Emit the array as a ``conv_general`` after a ``pad``, or as their transposes.

    A kernel is the kernel's cotangent of the padded convolution. An operand is the
    cotangent of the padded operand, without its borders.
    """
    result = _types(first.type, second.type, **params)
    gives, padding = params["gives"], params["padding"]
    form = Form(**{field.name: params[field.name] for field in fields(Form)})
    pads = dict(zip(form.lhs[SPATIAL], padding, strict=True))
    if gives == "operand":
        shape = result.shape
        padded_shape = tuple(
            n + sum(pads.get(axis, (0, 0))) for axis, n in enumerate(shape)
        )
        cotangent = to_operand(first, result.with_shape(padded_shape), second, form)
        if padded_shape == shape:
            return cotangent
        start = tuple(pads.get(axis, (0, 0))[0] for axis in range(len(shape)))
        limit = [a + n for a, n in zip(start, shape, strict=True)]
        return slicing.block(cotangent, start, limit)
    if any(itertools.chain.from_iterable(padding)):
        config = tuple((*pads.get(axis, (0, 0)), 0) for axis in range(first.type.ndim))
        zero = conversion.literal(0, first.type.dtype)
        first = slicing.pad(first, zero, config=config)
    if gives == "output":
        return conv_general(first, second, **form.params())
    return to_kernel(second, first, result, form)


def _samples() -> Iterable[Sample]:
    """Yield samples for each of the three arrays in several dtypes, for the tests."""

    def arrays(*shapes: Shape, dtype: dtypes.DType, seed: int) -> tuple[Array, ...]:
        """Return random arrays of these shapes."""
        return tuple(
            families.random_array(dtype, shape, seed + k, -1.5, 1.5)
            for k, shape in enumerate(shapes)
        )

    shapes = {"operand": (2, 5, 6, 2), "kernel": (3, 2, 2, 3), "output": (2, 6, 3, 3)}
    extents = {"operand": (5, 6), "kernel": (3, 2), "output": ()}
    for position, (gives, names) in enumerate(ARRAYS.items()):
        lhs, rhs, out = SIDES_NHWC
        params: dict[str, Callable[..., Any] | Any] = {
            "gives": gives,
            "lhs": lhs,
            "rhs": rhs,
            "out": out,
            "strides": (1, 2),
            "dilations": (1, 1),
            "padding": ((2, 1), (1, 0)),
            "extents": extents[gives],
        }
        inputs = arrays(
            *(shapes[name] for name in names), dtype=dtypes.float32, seed=401 + position
        )
        yield Sample(inputs, params)
        lhs, rhs, out = SIDES_NCH
        small = {"operand": (2, 2, 6), "kernel": (3, 2, 3), "output": (2, 3, 2)}
        for k, dtype in enumerate((dtypes.float64, dtypes.bfloat16, dtypes.int32)):
            inputs = arrays(
                *(small[name] for name in names), dtype=dtype, seed=411 + 7 * k
            )
            line = {
                "gives": gives,
                "lhs": lhs,
                "rhs": rhs,
                "out": out,
                "strides": (3,),
                "dilations": (2,),
                "padding": ((0, 2),),
                "extents": {"operand": (6,), "kernel": (3,), "output": ()}[gives],
            }
            if position == 0 and dtype == dtypes.float64:
                line["precision"] = "tf32"
            yield Sample(inputs, line)


padded_convolution = Primitive(
    name="padded_convolution",
    factors=convolution_factors,
    family="contraction",
    types=_types,
    reference=_reference,
    kernel=Composition(_expand),
    jvp=jvp_of_product(Emitter("padded_convolution")),
    transpose=_transpose,
    batch=_batch,
    samples=_samples,
    tolerance=Tolerance(float32=1e-5, float64=1e-14),
    doc="A convolution with zero padding, or the cotangent of its operand or kernel: "
    "the third array from two of operand, kernel and output. Each axis has a role.",
)
