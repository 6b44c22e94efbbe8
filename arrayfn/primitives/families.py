"""Constructors of elementwise Primitives, which derive most slots from a few facts.

``elementwise`` takes the partial derivatives, or a marker such as ``LINEAR``, and
derives types, jvp, transpose and batching. Rank-0 operands combine with any shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import DTypeError, ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.ir import layout as layouts
from arrayfn.ir.layout import Shape
from arrayfn.primitives import emitters
from arrayfn.primitives.base import (
    NOT_LINEAR,
    Array,
    Atoms,
    Batched,
    Dims,
    KernelForm,
    Linear,
    Marker,
    Operands,
    Primitive,
    Sample,
    Scalar,
    Tangents,
    Tolerance,
)

Partial = Callable[..., Atom]
ResultDType = Callable[[DType], DType]


def same(dtype: DType) -> DType:
    """Return ``dtype``: most functions have results of the operand's dtype."""
    return dtype


def boolean(dtype: DType) -> DType:
    """Return bool, the result dtype of predicates."""
    return dtypes.bool_


def elementwise(
    name: str,
    reference: Callable[..., Any],
    derivative: Sequence[Partial | None] | Marker,
    *,
    accepts: Iterable[DType],
    function: str | None = None,
    arity: int = 1,
    result: ResultDType = same,
    cost: int = 1,
    typed_by: int = 0,
    jvp: Callable[..., Any] | None = None,
    transpose: Callable[..., Any] | Marker = NOT_LINEAR,
    kernel: KernelForm | None = None,
    samples: Callable[[], Iterable[Sample]] | None = None,
    domain: tuple[float, float] = (-3.0, 3.0),
    tolerance: Tolerance = Tolerance(),
    types: Callable[..., ArrayType] | None = None,
    doc: str = "",
) -> Primitive:
    """Make an elementwise Primitive, and derive its rules from a few facts.

    Args:
        name: the primitive's name.
        reference: the NumPy function; it gets 16-bit floats as float32.
        derivative: the partial derivative by each input, a function of ``(*inputs,
            output)``, or None for zero; or a marker such as ``LINEAR``.
        accepts: the dtypes of the inputs.
        function: the function of the scalar vocabulary that kernels call; None if it
            has the primitive's name.
        arity: the number of inputs, for the samples.
        result: maps the inputs' dtype to the result's.
        cost: the function's time relative to an addition.
        typed_by: the number of the input whose dtype selects the scalar function.
        jvp: a jvp rule that replaces the one of the partial derivatives.
        transpose: a transpose rule, if the function is linear.
        kernel: the kernel form, if it is not the scalar function.
        samples: inputs for the table tests, instead of random ones.
        domain: the interval from which random samples are drawn.
        tolerance: the relative error that the table tests allow.
        types: a type rule, if inputs differ in dtype.
        doc: what the primitive computes.
    """
    allowed = frozenset(accepts)

    def rule(*operands: ArrayType, **params: Any) -> ArrayType:
        """Type rule: the common shape, and the result's dtype for the common dtype."""
        first = operands[0]
        if (
            result is same
            and first.dtype in allowed
            and _is_result_type(first, operands)
        ):
            return first  # the usual case, and fast, for long Programs
        dtype = common_dtype(name, operands, allowed)
        weak = all(t.weak for t in operands)
        return ArrayType(common_shape(name, operands), result(dtype), weak=weak)

    def draw() -> Iterable[Sample]:
        """Yield random samples."""
        return default_samples(allowed, arity, domain)

    if jvp is None and not isinstance(derivative, Marker):
        jvp = jvp_of_partials(tuple(derivative))

    def batch(axis_size: int, inputs: Atoms, dims: Dims, **params: Any) -> Batched:
        """Batching rule: the primitive on operands with the mapped axis in front."""
        return [primitive(*align(axis_size, inputs, dims), **params)], [0]

    primitive = Primitive(
        name=name,
        family="elementwise",
        types=types or rule,
        reference=in_compute_dtype(reference),
        kernel=kernel or Scalar(function or name, typed_by, cost),
        jvp=jvp or derivative,  # type: ignore[arg-type]
        transpose=transpose,
        batch=batch,
        samples=samples or draw,
        tolerance=tolerance,
        doc=doc,
    )
    return primitive


def _is_result_type(first: ArrayType, operands: Sequence[ArrayType]) -> bool:
    """Whether ``first``, the first operand's type, is surely the result's type.

    A quick test for the usual case: ``first`` is row-major, and each other operand has
    the same type or is a scalar of the same dtype.
    """
    if first.layout is not layouts.C:
        return False
    for operand in operands:
        if operand is not first and (
            operand.dtype is not first.dtype
            or (operand.shape and operand.shape != first.shape)
            or first.weak
        ):
            return False
    return True


def jvp_of_partials(partials: Sequence[Partial | None]) -> Callable[..., Any]:
    """Make the jvp rule of a function from its partial derivatives, one by each input.

    The rule is ``dy = sum_k dx_k * (dy / dx_k)``. A partial derivative is a function of
    ``(*inputs, output)``, or None for zero.
    """

    def rule(
        primals: Atoms, outputs: Atoms, tangents: Tangents, **params: Any
    ) -> Tangents:
        """Sum the products of tangents and partial derivatives."""
        total: Atom | None = None
        for tangent, partial in zip(tangents, partials, strict=True):
            if tangent is None or partial is None:
                continue
            term = emitters.mul(tangent, partial(*primals, outputs[0]))
            total = term if total is None else emitters.add(total, term)
        return [
            None if total is None else broadcast_scalar(total, outputs[0].type.shape)
        ]

    return rule


def common_shape(name: str, operands: Sequence[ArrayType]) -> Shape:
    """Return the shape of the operands that are not rank-0.

    Raises ShapeError, with the primitive's ``name``, if these have different shapes.
    """
    shape: Shape = ()
    for operand in operands:
        if operand.shape and shape and operand.shape != shape:
            given = ", ".join(str(t) for t in operands)
            raise ShapeError(
                f"{name} takes operands of one shape, but was given {given}; "
                "broadcast them first (arrayfn.numpy functions do)"
            )
        shape = operand.shape or shape
    return shape


def common_dtype(
    name: str, operands: Sequence[ArrayType], allowed: frozenset[DType]
) -> DType:
    """Return the dtype of the operands.

    Raises DTypeError, with the primitive's ``name``, if the operands have different
    dtypes, or one that is not ``allowed``.
    """
    dtype = operands[0].dtype
    if any(t.dtype != dtype for t in operands):
        given = ", ".join(str(t) for t in operands)
        raise DTypeError(
            f"{name} takes operands of one dtype, but was given {given}; "
            "convert them first (arrayfn.numpy functions promote)"
        )
    if dtype not in allowed:
        if dtype in dtypes.STORAGE:
            raise dtypes.storage_error(name, dtype)
        raise DTypeError(
            f"{name} is not defined for {dtypes.short_name(dtype)}; it takes "
            + ", ".join(n for d, n in dtypes.SHORT_NAMES.items() if d in allowed)
        )
    return dtype


def check_defined(name: str, x: ArrayType, allowed: frozenset[DType]) -> None:
    """Raise DTypeError unless the dtype of ``x`` is among the ``allowed`` ones."""
    if x.dtype in dtypes.STORAGE - allowed:
        raise dtypes.storage_error(name, x.dtype)
    if x.dtype not in allowed:
        raise DTypeError(f"{name} is not defined for {x}")


def in_compute_dtype(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a NumPy ``function`` to compute fp16 and bf16 in float32, rounded once."""

    def compute(*operands: Any, **params: Any) -> Any:
        """Call ``function``, with fp16 and bf16 operands as float32, and round back."""
        with np.errstate(all="ignore"):
            halves = [x for x in operands if x.dtype in dtypes.HALF_PRECISION]
            if not halves:
                return function(*operands, **params)
            widened = [
                x.astype(dtypes.float32) if x.dtype in dtypes.HALF_PRECISION else x
                for x in operands
            ]
            result = np.asarray(function(*widened, **params))
            return (
                result.astype(halves[0].dtype)
                if result.dtype == dtypes.float32
                else result
            )

    return compute


def broadcast_scalar(value: Atom, shape: Shape) -> Atom:
    """Broadcast ``value`` to ``shape`` if it is rank-0 and ``shape`` is not."""
    if value.type.shape == shape:
        return value
    return emitters.broadcast_in_dim(value, shape=shape, axes=())


def sum_to_scalar(cotangent: Atom, operand: ArrayType) -> Atom:
    """The transpose of ``broadcast_scalar``: sum ``cotangent`` for a rank-0 operand."""
    if cotangent.type.shape == operand.shape:
        return cotangent
    axes = tuple(range(cotangent.type.ndim))
    return emitters.reduce_sum(cotangent, axes=axes)


def transpose_each(*maps: Callable[..., Atom]) -> Callable[..., Tangents]:
    """Make the transpose rule of a function of one output from a map for each input.

    The function is linear in each input, or in all inputs together.
    ``maps[k](cotangent, inputs)`` is the cotangent of input k.
    """

    def rule(cotangents: Tangents, inputs: Operands, **params: Any) -> Tangents:
        """Return the cotangent of each Linear input, by its map, and None for others.

        The cotangent of a rank-0 input is summed over all elements.
        """
        (cotangent,) = cotangents
        results: list[Atom | None] = []
        for operand, transpose in zip(inputs, maps, strict=True):
            if cotangent is None or not isinstance(operand, Linear):
                results.append(None)
            else:
                value = transpose(cotangent, inputs)
                results.append(sum_to_scalar(value, operand.type))
        return results

    return rule


def align(axis_size: int, operands: Sequence[Atom], dims: Dims) -> list[Atom]:
    """Move the mapped axis of operands to the front, and broadcast to one shape.

    Operands that have rank 0 and are not mapped stay as they are. ``axis_size`` is the
    extent of the mapped axis, and ``dims`` its place in each operand.
    """
    inner: Shape = ()  # the shape of one member
    for operand, dim in zip(operands, dims, strict=True):
        shape = operand.type.shape
        inner = (shape if dim is None else shape[:dim] + shape[dim + 1 :]) or inner
    target = (axis_size, *inner)
    aligned: list[Atom] = []
    for operand, dim in zip(operands, dims, strict=True):
        if dim is not None:
            operand = emitters.move_axis(operand, dim, 0)
            axes = tuple(range(operand.type.ndim))
        elif operand.type.ndim == 0:
            aligned.append(operand)
            continue
        else:
            axes = tuple(range(1, len(target)))
        if operand.type.shape != target:
            operand = emitters.broadcast_in_dim(operand, shape=target, axes=axes)
        aligned.append(operand)
    return aligned


def random_array(
    dtype: DType, shape: Shape, seed: int, low: float = -3.0, high: float = 3.0
) -> Array:
    """Return reproducible values of ``dtype``, uniform in [``low``, ``high``).

    Integers are the floor of three times such values, unsigned ones of their absolute
    values. Bools are True for values above the middle of the interval.
    """
    rng = np.random.default_rng(seed)
    values = rng.uniform(low, high, shape)
    if dtype == dtypes.bool_:
        return values > (low + high) / 2
    if dtype in dtypes.UNSIGNED or dtype == dtypes.uint4:
        return np.floor(np.abs(values) * 3).astype(dtype)
    if dtype in dtypes.SIGNED or dtype == dtypes.int4:
        return np.floor(values * 3).astype(dtype)
    if dtype in dtypes.COMPLEX:
        imaginary = rng.uniform(low, high, shape)
        return (values + 1j * imaginary).astype(dtype)
    return values.astype(dtype)


def default_samples(
    allowed: frozenset[DType], arity: int, domain: tuple[float, float]
) -> Iterable[Sample]:
    """Yield one sample for each ``allowed`` dtype, with values drawn from ``domain``.

    A sample has ``arity`` arrays. If there are several, one is of rank 0 in the last
    sample.
    """
    order = [d for d in dtypes.SHORT_NAMES if d in allowed]
    for position, dtype in enumerate(order):
        shapes: list[Shape] = [(3, 5)] * arity
        if arity > 1 and position == len(order) - 1:
            shapes[-1] = ()
        yield Sample(
            tuple(
                random_array(dtype, shape, 7 * k + position, *domain)
                for k, shape in enumerate(shapes)
            ),
            {},
        )
