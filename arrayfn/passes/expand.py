"""Expands primitives without kernels into primitives that have kernels.

After it: no equation's primitive is a Composition, except those that the target
computes itself. Every dot_general has dtypes that the target's library multiplies, and
operands of rank 1 or more; int8 operands are padded to multiples of 4 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.ir import Atom, Equation, Literal, Program, Var
from arrayfn.ir.builder import rewritten
from arrayfn.passes.inline_calls import keep_none
from arrayfn.passes.matrices import WORD
from arrayfn.primitives import contraction, conversion, reductions, slicing, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    Composition,
    Contraction,
    Convert,
    Scalar,
    View,
    primitive_of,
)
from arrayfn.primitives.rules import as_list

# The largest product of two int8 is (-128)**2 = 2**14. A sum of so many fits in int32.
_MAX_TERMS: Final = (1 << 31) // (1 << 14) - 1
_LONG_DOT: Final = 1 << 16  # elements of a vector

Products = AbstractSet[tuple[DType, DType]]
"""Pairs of dtypes that a library multiplies: that of operands, that of the product."""

BLAS: Final[Products] = frozenset(
    (dtype, dtype)
    for dtype in (dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)
)


def expand(
    program: Program,
    products: Products = BLAS,
    keep: Callable[[Equation], bool] = keep_none,
) -> Program:
    """Replace every equation that has no kernel by equations that have one.

    Expansion repeats until no Composition is left, except those that ``keep`` accepts.
    ``products`` are the dtypes of matrices that the target's library multiplies.
    """
    changed = True
    while changed:
        program, changed = _expanded(program, products, keep)
    return program


def _expanded(
    program: Program, products: Products, keep: Callable[[Equation], bool]
) -> tuple[Program, bool]:
    """Expand the equations of ``program`` once; also return whether any changed."""
    changed = False
    definitions = program.definitions()

    def replacement(equation: Equation, operands: list[Atom]) -> list[Atom] | None:
        """Emit what ``equation`` expands to; None leaves the equation as it is.

        Sets ``changed`` if it is expanded.
        """
        nonlocal changed
        primitive = primitive_of(equation)
        result: Atom | list[Atom] | None = None
        if isinstance(primitive.kernel, Composition) and not keep(equation):
            result = primitive.kernel.expand(*operands, **equation.params)
        elif isinstance(primitive.kernel, Contraction):
            # Only where BLAS, the CPU's library, would multiply.
            fuses = products is BLAS and (
                _is_product_of_narrow_matrix(equation, definitions)
                or _is_long_dot(equation)
            )
            result = _product(operands, equation, products, fuses)
        changed |= result is not None
        return None if result is None else as_list(result)

    return rewritten(program, replacement), changed


def _product(
    operands: Sequence[Atom],
    equation: Equation,
    products: Products,
    fuses: bool,
) -> Atom | None:
    """Emit what replaces a dot_general; None if the library computes it as it stands.

    The first case that applies:

    - A sum over no terms becomes zeros.
    - A product that ``fuses`` becomes a sum of products, which one kernel computes
      together with its operands.
    - A product of int8 is padded, and summed in int32 by the library.
    - Any other product is computed in the compute dtype, between conversions: by
      ``mul`` if an operand is a scalar, as a sum of products for integers or if the
      target has no library, else by the library.

    ``operands`` are those of ``equation`` in the new Program.
    """
    x, y = operands
    params: dict[str, Any] = dict(equation.params)
    result_dtype = equation.outputs[0].type.dtype
    if 0 in (x.type.shape[axis] for axis in params["contract"][0]):
        return views.zeros(equation.outputs[0].type)
    has_scalar = not x.type.shape or not y.type.shape
    if not has_scalar and (x.type.dtype, result_dtype) in products:
        if fuses:
            return sum_of_products(x, y, params["contract"], params["batch"])
        if result_dtype in dtypes.INEXACT or _has_aligned_extents(equation):
            return None
    if (integer_product := _integer_product(x, y, equation, products)) is not None:
        return conversion.as_dtype(integer_product, result_dtype)
    computed = dtypes.compute_dtype(result_dtype)
    params.pop("preferred_element_type", None)
    x, y = (conversion.as_dtype(v, computed) for v in operands)
    if has_scalar:
        product = e.mul(x, y)
    elif computed in dtypes.INTEGERS or not products:
        product = sum_of_products(x, y, params["contract"], params["batch"])
    else:
        product = contraction.dot_general(x, y, **params)
    return conversion.as_dtype(product, result_dtype)


def _integer_product(
    x: Atom, y: Atom, equation: Equation, products: Products
) -> Atom | None:
    """Emit an int8 product by the library, summed in int32; None if impossible.

    It is impossible if the library has no such product, if nothing is contracted, or if
    an int64 result may overflow int32. ``x`` and ``y`` are the operands of
    ``equation``. The library needs rows that begin at multiples of 4 bytes: other
    extents are padded with zeros. ``products`` are the library's pairs of the dtypes of
    operands and results.
    """
    dtype, result_dtype = x.type.dtype, equation.outputs[0].type.dtype
    contract, batch = equation.params["contract"], equation.params["batch"]
    if (dtype, dtypes.int32) not in products or result_dtype not in dtypes.INTEGERS:
        return None
    if not contract[0]:
        return None
    terms = contraction.depth(equation)
    if np.dtype(result_dtype).itemsize > 4 and terms > _MAX_TERMS:
        return None
    left = contraction.free_axes(x.type.ndim, contract[0], batch[0])
    right = contraction.free_axes(y.type.ndim, contract[1], batch[1])
    if not left or not right:
        return None  # a matrix and a vector: bound by reading them
    x = _padded(_padded(x, left), contract[0])
    y = _padded(_padded(y, right), contract[1])
    product = contraction.dot_general(
        x, y, contract=contract, batch=batch, preferred_element_type=dtypes.int32
    )
    shape = equation.outputs[0].type.shape
    if product.type.shape == shape:
        return product
    return slicing.block(product, (0,) * len(shape), shape)  # without the padding


def _is_product_of_narrow_matrix(
    equation: Equation, definitions: Mapping[Var, Equation]
) -> bool:
    """Whether ``equation`` multiplies a vector by a matrix made from a narrower dtype.

    An example is ``convert(w, float32) @ x`` for bfloat16 weights ``w``. Such a product
    is bound by reading the matrix. A kernel converts while it reads; the library would
    read the matrix in the product's dtype, written to memory before.
    """
    x, y = equation.inputs
    matrix, vector = (x, y) if x.type.size >= y.type.size else (y, x)
    multiplications = equation.outputs[0].type.size * contraction.depth(equation)
    uses_elements_once = matrix.type.size == multiplications
    if not uses_elements_once or vector.type.size == matrix.type.size:
        return False
    return _is_made_of_narrower(matrix, definitions)


def _is_made_of_narrower(matrix: Atom, definitions: Mapping[Var, Equation]) -> bool:
    """Whether ``matrix`` is computed elementwise from arrays of narrower elements.

    All arrays that it is computed from must be narrower, and there must be one. Scalars
    do not count.
    """
    is_narrow, atoms, seen = False, [matrix], set[Atom]()
    while atoms:
        atom = atoms.pop()
        if isinstance(atom, Literal) or not atom.type.shape or atom in seen:
            continue
        seen.add(atom)
        definition = definitions.get(atom)
        form = None if definition is None else primitive_of(definition).kernel
        if definition is not None and isinstance(form, (Scalar, Convert, View)):
            atoms += definition.inputs
        elif atom.type.dtype.itemsize >= matrix.type.dtype.itemsize:
            return False
        else:
            is_narrow = True
    return is_narrow


def _is_long_dot(equation: Equation) -> bool:
    """Whether ``equation`` is a dot product of two long vectors, bound by memory.

    BLAS sums each lane from end to end. A kernel sums in blocks, on all threads, and
    fuses the computation of the vectors.
    """
    x, _ = equation.inputs
    return equation.outputs[0].type.size == 1 and x.type.size >= _LONG_DOT


def _has_aligned_extents(equation: Equation) -> bool:
    """Whether no extent of an int8 product needs padding for the library."""
    contract, batch = equation.params["contract"], equation.params["batch"]
    for atom, contracted, batch_axes in zip(
        equation.inputs, contract, batch, strict=True
    ):
        shape = atom.type.shape
        free = contraction.free_axes(len(shape), contracted, batch_axes)
        for axes in (contracted, free):
            if not axes or math.prod(shape[axis] for axis in axes) % WORD:
                return False
    return True


def _padded(x: Atom, axes: Sequence[int]) -> Atom:
    """Pad ``x`` with zeros along the last of ``axes``, up to a multiple of 4 elements.

    ``x`` has one-byte elements. It stays if its ``axes`` together have a multiple of 4.
    """
    shape = x.type.shape
    if math.prod(shape[axis] for axis in axes) % WORD == 0:
        return x
    config = [(0, 0, 0)] * len(shape)
    config[axes[-1]] = (0, -shape[axes[-1]] % WORD, 0)
    zero = conversion.literal(0, x.type.dtype)
    return slicing.pad(x, zero, config=tuple(config))


def sum_of_products(
    x: Atom, y: Atom, contract: contraction.AxesPair, batch: contraction.AxesPair
) -> Atom:
    """Emit a dot_general as a broadcast product and a sum over the contracted axes.

    ``x[i, k] @ y[k, j]`` becomes ``reduce_sum(x[i, :, k] * y[:, j, k], axes=k)``, where
    ``:`` are broadcast axes. ``contract`` and ``batch`` are the dot_general's params.
    """
    left = contraction.free_axes(x.type.ndim, contract[0], batch[0])
    right = contraction.free_axes(y.type.ndim, contract[1], batch[1])
    x = views.transpose(x, permutation=(*batch[0], *left, *contract[0]))
    y = views.transpose(y, permutation=(*batch[1], *right, *contract[1]))
    # The product's axes: batch, those of x, those of y, contracted.
    batch_end = len(batch[0])
    left_end = batch_end + len(left)
    right_end = left_end + len(right)
    contracted = tuple(range(right_end, right_end + len(contract[0])))
    shape = (*x.type.shape[:left_end], *y.type.shape[batch_end:])
    x_axes = (*range(left_end), *contracted)
    y_axes = (*range(batch_end), *range(left_end, right_end), *contracted)
    product = e.mul(
        views.broadcast_in_dim(x, shape=shape, axes=x_axes),
        views.broadcast_in_dim(y, shape=shape, axes=y_axes),
    )
    return reductions.reduce_sum(product, axes=contracted) if contracted else product
