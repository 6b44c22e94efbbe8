"""Replaces storage types by the bytes that they are stored in.

Arrays of float8 and int4 become arrays of uint8. What moves elements moves bytes.
Conversions become arithmetic on bits, with ml_dtypes' results. A product is one of the
operands in the narrowest dtype that holds their numbers and that the target multiplies.

After it: no Var and no Literal has a storage type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import DTypeError, located
from arrayfn.ir import ArrayType, Atom, Equation, Literal, Program, Var
from arrayfn.ir.builder import ProgramBuilder, current_builder, rename
from arrayfn.passes.expand import BLAS, Products
from arrayfn.passes.inline_calls import inline_calls, keep_none
from arrayfn.primitives import contraction, conversion, discrete
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import primitive_of
from arrayfn.primitives.conversion import bitcast, convert
from arrayfn.records import frozen


def storage_as_bytes(
    program: Program,
    products: Products = BLAS,
    keep: Callable[[Equation], bool] = keep_none,
) -> Program:
    """Replace storage types in ``program`` by uint8.

    ``products`` and ``keep`` are the pipeline's. Raises DTypeError for a Python
    function, or an operator's kernel, that takes or gives an array of a storage type.
    """
    if not _has_storage(program):
        return program
    rewrite = _StorageAsBytes(products, keep)
    with ProgramBuilder(program.name) as builder:
        environment: dict[Var, Atom] = {
            v: builder.input(_bytes_type(v.type), v.hint) for v in program.inputs
        }
        for var, value in program.constant_pairs():
            is_stored = var.type.dtype in dtypes.STORAGE
            stored = value.view(np.uint8) if is_stored else value
            environment[var] = builder.constant(stored)
        for equation in program.equations:
            builder.source = equation.source
            operands = [_renamed(a, environment) for a in equation.inputs]
            results = rewrite.emit(equation, operands)
            environment.update(zip(equation.outputs, results, strict=True))
        return builder.build([_renamed(a, environment) for a in program.outputs])


@frozen
class _StorageAsBytes:
    """Emits equations with storage types as bytes.

    ``products`` and ``keep`` are those of the pipeline.
    """

    products: Products
    keep: Callable[[Equation], bool]

    def emit(self, equation: Equation, operands: list[Atom]) -> Sequence[Atom]:
        """Emit ``equation`` on bytes; ``operands`` of storage types are bytes already.

        Conversions, bitcasts and products have rules of their own. Other primitives
        move elements, and get bytes instead. An equation without storage types stays.
        """
        builder = current_builder()
        primitive, params = primitive_of(equation), equation.params
        kinds = [a.type.dtype for a in (*equation.inputs, *equation.outputs)]
        if not dtypes.STORAGE.intersection(kinds) and not equation.subprograms():
            return builder.keep(equation, operands)
        if "callback" in params or self.keep(equation):
            raise located(_foreign_error(equation), equation.source)
        if primitive is conversion.convert_element_type:
            return [_converted(operands[0], kinds[0], kinds[1])]
        if primitive is bitcast:
            source, target = map(_bytes_dtype, kinds)
            same = source == target
            return [operands[0] if same else bitcast(operands[0], dtype=target)]
        if primitive is contraction.dot_general:
            return [_product(operands, equation, self.products)]
        params = {name: self.param(value) for name, value in params.items()}
        if params.get("fill_value") is not None:
            params["fill_value"] = _byte_of(params["fill_value"], kinds[0])
        return builder.emit(primitive, operands, params)

    def param(self, value: Any) -> Any:
        """Replace storage types in a param of an equation, also in Programs."""
        if isinstance(value, Program):
            inlined = inline_calls(value, self.keep)
            return storage_as_bytes(inlined, self.products, self.keep)
        if isinstance(value, np.dtype):
            return _bytes_dtype(value)
        if isinstance(value, tuple):
            return tuple(map(self.param, value))
        return value


def _has_storage(program: Program) -> bool:
    """Whether a value of ``program``, or of a Program inside it, has a storage type."""
    atoms = (
        *program.inputs,
        *program.constants,
        *program.outputs,
        *(a for eq in program.equations for a in (*eq.inputs, *eq.outputs)),
    )
    return any(a.type.dtype in dtypes.STORAGE for a in atoms) or any(
        _has_storage(inner) for eq in program.equations for inner in eq.subprograms()
    )


def _bytes_dtype(dtype: DType) -> DType:
    """Return uint8 for a storage type, else ``dtype``."""
    return dtypes.uint8 if dtype in dtypes.STORAGE else dtype


def _bytes_type(type: ArrayType) -> ArrayType:
    """Return ``type`` as it is stored."""
    return replace(type, dtype=dtypes.uint8) if type.dtype in dtypes.STORAGE else type


def _byte_of(value: Any, dtype: DType) -> Any:
    """Return the byte in which a storage type ``dtype`` stores the number ``value``.

    For other dtypes return the number.
    """
    if dtype not in dtypes.STORAGE:
        return value
    return np.asarray(value).astype(dtype).view(np.uint8).item()


def _renamed(atom: Atom, environment: dict[Var, Atom]) -> Atom:
    """Return ``atom`` in the new Program.

    A Literal of a storage type becomes its byte.
    """
    if isinstance(atom, Literal) and atom.type.dtype in dtypes.STORAGE:
        return Literal(_byte_of(atom.value, atom.type.dtype), dtypes.uint8)
    return rename(atom, environment)


def _foreign_error(equation: Equation) -> DTypeError:
    """Return the error for a callback or kernel on arrays of a storage type."""
    name = equation.params.get("callback") or equation.params.get("name")
    return DTypeError(
        f"{name} is computed by a function that takes no arrays of storage types; pass "
        "the bytes: lax.bitcast_convert_type(x, 'uint8')"
    )


def _converted(x: Atom, source: DType, target: DType) -> Atom:
    """Convert ``x`` from ``source`` to ``target``; both are bytes if storage types."""
    if source == target:
        return x
    value = x if source not in dtypes.STORAGE else _decoded(x, source)
    if target in dtypes.FLOAT8:
        return _FORMATS[target].encoded(value)
    return (
        _int4_encoded(value, target)
        if target in dtypes.INT4
        else convert(value, target)
    )


def _decoded(x: Atom, source: DType) -> Atom:
    """Convert bytes ``x`` that store ``source`` to int8, float16 or float32."""
    if source == dtypes.uint4:
        return bitcast(discrete.bitwise_and(x, _byte(0xF)), dtype=dtypes.int8)
    if source == dtypes.int4:
        # Four bits up and four down again: this extends the sign.
        high = bitcast(discrete.shift_left(x, _byte(4)), dtype=dtypes.int8)
        return discrete.shift_right_arithmetic(high, Literal(4, dtypes.int8))
    return _FORMATS[source].decoded(x)


def _int4_encoded(x: Atom, target: DType) -> Atom:
    """Convert numbers to int4 or uint4 in bytes: integers wrap, floats are clamped."""
    if x.type.dtype in dtypes.FLOATS:
        wide = dtypes.int8 if target == dtypes.int4 else dtypes.uint8
        limits = dtypes.limits(target)
        low, high = (Literal(int(n), wide) for n in (limits.min, limits.max))
        x = e.clamp(low, convert(x, wide), high)
    return discrete.bitwise_and(convert(x, dtypes.uint8), _byte(0xF))


def _byte(value: int) -> Literal:
    """Return ``value`` as uint8."""
    return Literal(value, dtypes.uint8)


@frozen(slots=True)
class _Float8:
    """An 8-bit floating-point format: a sign bit, the exponent, ``mantissa`` bits.

    ``bias`` is the exponent field of 1.0. ``highest`` is the byte that numbers too
    large become (without the sign), and ``nan`` the byte of NaN.
    """

    mantissa: int
    bias: int
    highest: int
    nan: int

    def decoded(self, x: Atom) -> Atom:
        """Convert bytes ``x`` to float16 or float32.

        The bits fit into a float16, which has 5 bits of exponent and a bias of 15.
        float8_e5m2 (bias 15) is the upper byte of a float16. For other formats the
        exponent and mantissa are moved to their places in a float16, whose value is
        then scaled by the difference of the biases.
        """
        x = convert(x, dtypes.uint16)
        if self.bias == 15:
            return bitcast(discrete.shift_left(x, _u16(8)), dtype=dtypes.float16)
        magnitude = discrete.bitwise_and(x, _u16(0x7F))
        sign = discrete.shift_left(discrete.bitwise_xor(x, magnitude), _u16(8))
        wide = discrete.shift_left(magnitude, _u16(10 - self.mantissa))
        # float16's NaN has another exponent.
        wide = e.select(discrete.eq(magnitude, _u16(self.nan)), _u16(0x7E00), wide)
        half = bitcast(discrete.bitwise_or(sign, wide), dtype=dtypes.float16)
        scale = Literal(2.0 ** (15 - self.bias), dtypes.float32)
        return e.mul(convert(half, dtypes.float32), scale)

    def encoded(self, x: Atom) -> Atom:
        """Round ``x`` to float32, then to this format, ties to even; returns bytes."""
        raw = bitcast(convert(x, dtypes.float32), dtype=dtypes.uint32)
        sign = discrete.bitwise_and(_shift_right(raw, 24), _u32(0x80))
        raw = discrete.bitwise_and(raw, _u32(0x7FFFFFFF))
        # Normal numbers: add one half of the last bit that stays, less 1 if that bit is
        # 0 (a tie then rounds down, to even), and cut.
        cut = 23 - self.mantissa
        odd = discrete.bitwise_and(_shift_right(raw, cut), _u32(1))
        rounded = _shift_right(e.add(e.add(raw, odd), _u32((1 << (cut - 1)) - 1)), cut)
        normal = e.sub(rounded, _u32((127 - self.bias) << self.mantissa))
        # Subnormal numbers: add a float32 whose last bit has the value of theirs. The
        # addition rounds to it, and the sum's lower bits are the result.
        shift = 1 - self.bias - self.mantissa + 23
        unit = Literal(2.0**shift, dtypes.float32)
        total = e.add(bitcast(raw, dtype=dtypes.float32), unit)
        subnormal = e.sub(bitcast(total, dtype=dtypes.uint32), _power_of_2(shift))
        is_small = discrete.lt(raw, _power_of_2(1 - self.bias))
        result = e.select(is_small, subnormal, e.minimum(normal, _u32(self.highest)))
        if self.highest != self.nan:
            is_nan = discrete.gt(raw, _u32(0x7F800000))
            result = e.select(is_nan, _u32(self.nan), result)
        return convert(discrete.bitwise_or(result, sign), dtypes.uint8)


def _u32(value: int) -> Literal:
    """Return ``value`` as uint32."""
    return Literal(value, dtypes.uint32)


def _power_of_2(exponent: int) -> Literal:
    """Return the bits of ``2.0**exponent`` in float32: the biased exponent field."""
    return _u32((127 + exponent) << 23)


def _shift_right(x: Atom, count: int) -> Atom:
    """Return the uint32 numbers ``x >> count``."""
    return discrete.shift_right_logical(x, _u32(count))


def _u16(value: int) -> Literal:
    """Return ``value`` as uint16."""
    return Literal(value, dtypes.uint16)


_FORMATS: Final = {
    dtypes.float8_e4m3fn: _Float8(mantissa=3, bias=7, highest=0x7F, nan=0x7F),
    dtypes.float8_e5m2: _Float8(mantissa=2, bias=15, highest=0x7C, nan=0x7E),
}


def _product(operands: list[Atom], equation: Equation, products: Products) -> Atom:
    """Emit a dot_general of storage types, in a dtype that the target multiplies.

    int4 is multiplied as int8 if the result is an integer. Otherwise operands become
    bfloat16 if the target multiplies that into the result's dtype, else the compute
    dtype. ``operands`` are bytes where ``equation`` has storage types.
    """
    result = equation.outputs[0].type.dtype
    kinds = [a.type.dtype for a in equation.inputs]
    computed = dtypes.compute_dtype(result)
    if kinds[0] in dtypes.INT4 and result in dtypes.INTEGERS:
        computed = dtypes.int8
    elif (dtypes.bfloat16, result) in products:
        computed = dtypes.bfloat16
    x, y = (_converted(a, k, computed) for a, k in zip(operands, kinds, strict=True))
    is_rounded = result in dtypes.HALF_PRECISION and computed != result
    into = computed if is_rounded else result
    params = {**equation.params, "preferred_element_type": into}
    if computed == into:
        del params["preferred_element_type"]
    product = contraction.dot_general(x, y, **params)
    return convert(product, result) if is_rounded else product
