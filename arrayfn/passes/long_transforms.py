"""Cuts long Fourier transforms in few rows into many short ones, for all cores.

A transform of n = a * b elements is b transforms of a elements, a multiplication by
roots of unity, and a transforms of b elements, with transpositions in between so that
all are along rows: the "four-step" algorithm (Bailey, FFTs in external or hierarchical
memory, 1990). Short rows fit the cache; long ones do not. A real transform is computed
by a complex one of half the length (Press et al., Numerical Recipes, 12.3).

After it: a transform of few rows has no long row, unless its length has no two factors
near its square root.
"""

from __future__ import annotations

import math
from typing import Final

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.ir import Atom, Equation, Program
from arrayfn.ir.builder import rewritten
from arrayfn.primitives import (
    complex_numbers,
    conversion,
    discrete,
    fourier,
    slicing,
    special,
    views,
)
from arrayfn.primitives import elementwise as e

LONG: Final = 1 << 17
"""The row length from which cutting pays; shorter rows fit the cache."""
FEW: Final = 4
"""With fewer rows than this, cores are idle."""
DIGITS: Final = 32
"""The largest number of columns in a group: see ``_with_twiddles``."""
_COUNT: Final = dtypes.int64
BALANCE: Final = 8
"""The largest ratio of the two factors of a length."""


def cut_long_transforms(program: Program) -> Program:
    """Replace long Fourier transforms by several shorter ones."""
    if not any(map(_is_long, program.equations)):
        return program
    return rewritten(program, _cut)


def _cut(equation: Equation, operands: list[Atom]) -> list[Atom] | None:
    """Emit a long transform as shorter ones; None for other equations."""
    if not _is_long(equation):
        return None
    kind, length = equation.params["kind"], equation.params["length"]
    result = _transform_of_kind(operands[0], kind, length)
    scale = fourier.factor(kind, length, equation.params["norm"])
    if scale != 1:
        result = e.mul(result, conversion.literal(scale, result.type.dtype))
    return [result]


def _is_long(equation: Equation) -> bool:
    """Whether ``equation`` is a transform of few, long rows that can be cut."""
    if equation.primitive is not fourier.fft:
        return False
    shape, length = equation.inputs[0].type.shape, equation.params["length"]
    if equation.params["kind"] in ("rfft", "irfft"):
        if length % 2:
            return False
        length //= 2
    has_few_rows = 0 < math.prod(shape[:-1]) < FEW
    return has_few_rows and length >= LONG and factors(length) is not None


def factors(length: int) -> tuple[int, int] | None:
    """Return the two factors of ``length`` nearest to its square root, smaller first.

    None if one would be more than ``BALANCE`` times the other.
    """
    for a in range(math.isqrt(length), math.isqrt(length // BALANCE), -1):
        if length % a == 0:
            return a, length // a
    return None


def _transform_of_kind(x: Atom, kind: str, length: int) -> Atom:
    """Emit the transform ``kind`` of ``length``, without normalisation."""
    if kind == "rfft":
        return _real(x, length)
    if kind == "irfft":
        return _real_back(x, length)
    return _four_steps(x, -1 if kind == "fft" else 1)


def _four_steps(x: Atom, sign: int) -> Atom:
    """Emit a complex transform in four steps: transform, twiddle, transform, transpose.

    Element k of the result is the sum over j of x[..., j] * exp(sign * 2i pi j k / n).
    With j = b * j1 + j0 and k = a * k1 + k0, for n = a * b, the exponent is
    j1 * k0 / a + j0 * k0 / n + j0 * k1 / b, up to whole turns.
    """
    outer, n = x.type.shape[:-1], x.type.shape[-1]
    pair = factors(n)
    assert pair is not None
    a, b = pair
    x = _transposed(views.reshape(x, shape=(*outer, a, b)))  # [j0, j1]
    x = _with_twiddles(_transform(x, sign), n, sign)  # [j0, k0]
    x = _transposed(_transform(_transposed(x), sign))  # [k0, j0], [k0, k1], [k1, k0]
    return views.reshape(x, shape=(*outer, n))


def _transform(x: Atom, sign: int) -> Atom:
    """Return the complex transform of each row, without normalisation.

    ``sign`` is that of the exponent: -1 for "fft", 1 for "ifft".
    """
    kind, norm = ("fft", "backward") if sign < 0 else ("ifft", "forward")
    return fourier.fft(x, kind=kind, length=x.type.shape[-1], norm=norm)


def _transposed(x: Atom) -> Atom:
    """Return ``x`` with its last two axes exchanged."""
    last = x.type.ndim - 1
    return views.transpose(x, permutation=(*range(last - 1), last, last - 1))


def _with_twiddles(x: Atom, n: int, sign: int) -> Atom:
    """Multiply row j and column k of ``x`` by exp(sign * 2i pi j k / n).

    With ``k = digits * group + digit``, the factor is the product of the roots for
    ``j * digits * group`` and ``j * digit``. So sines are computed for
    ``columns / digits + digits`` columns instead of ``columns``.
    """
    *outer, rows, columns = x.type.shape
    digits = math.gcd(columns, DIGITS)
    parts = views.reshape(x, shape=(*outer, rows, columns // digits, digits))
    shape, row_axis = parts.type.shape, len(outer)
    real = dtypes.real_of(x.type.dtype)
    for axis, step in ((row_axis + 1, digits), (row_axis + 2, 1)):
        counts = (rows, shape[axis])
        row, column = (views.iota(shape=counts, axis=k, dtype=_COUNT) for k in (0, 1))
        steps = e.mul(e.mul(row, column), conversion.literal(step, _COUNT))
        roots = _unit(steps, n, sign, real)
        roots = views.broadcast_in_dim(roots, shape=shape, axes=(row_axis, axis))
        parts = e.mul(parts, roots)
    return views.reshape(parts, shape=(*outer, rows, columns))


def _unit(steps: Atom, n: int, sign: int, dtype: DType) -> Atom:
    """Return exp(sign * 2i pi steps / n), for steps from 0 to n.

    Steps above n / 2 have n subtracted, so that no angle exceeds pi.
    """
    is_upper_half = discrete.gt(steps, conversion.literal(n // 2, _COUNT))
    signed_steps = e.select(
        is_upper_half, e.sub(steps, conversion.literal(n, _COUNT)), steps
    )
    step = conversion.literal(sign * 2 * math.pi / n, dtype)
    angle = e.mul(conversion.convert(signed_steps, dtype), step)
    return complex_numbers.make_complex(special.cos(angle), special.sin(angle))


def _real(x: Atom, n: int) -> Atom:
    """Return the first n // 2 + 1 elements of the transform of n real elements.

    Elements of even index become the real parts of n / 2 complex elements, and those of
    odd index the imaginary parts. If z is the complex transform, with h = n / 2 and
    z[h] = z[0], element k of the result is
    ``((z[k] + conj(z[h-k])) - i exp(-2i pi k / n) (z[k] - conj(z[h-k]))) / 2``.
    """
    outer, half = x.type.shape[:-1], n // 2
    pairs = views.reshape(x, shape=(*outer, half, 2))
    even, odd = (slicing.index_along(pairs, len(outer) + 1, k) for k in (0, 1))
    transform = _four_steps(complex_numbers.make_complex(even, odd), sign=-1)
    first = slicing.slice_along(transform, len(outer), 0, 1)
    transform = slicing.concatenate(transform, first, axis=len(outer))
    mirrored = complex_numbers.conj(views.rev(transform, axes=(len(outer),)))
    of_even, of_odd = e.add(transform, mirrored), e.sub(transform, mirrored)
    quarter = _quarter(half + 1, n, sign=-1, real=x.type.dtype)
    rotated = e.mul(of_odd, _along_last(quarter, of_odd))
    return e.mul(e.add(of_even, rotated), conversion.literal(0.5, rotated.type.dtype))


def _real_back(x: Atom, n: int) -> Atom:
    """Return the n real elements whose transform begins with the n // 2 + 1 of ``x``.

    They are not divided by n. With h = n / 2, the elements of even and odd index are
    the real and imaginary parts of the inverse complex transform of
    ``(x[k] + conj(x[h-k])) + i exp(2i pi k / n) (x[k] - conj(x[h-k]))``.
    """
    outer, half = x.type.shape[:-1], n // 2
    real = dtypes.real_of(x.type.dtype)
    position = views.iota(shape=(half + 1,), axis=0, dtype=_COUNT)
    ends = discrete.bitwise_or(
        discrete.eq(position, conversion.literal(0, _COUNT)),
        discrete.eq(position, conversion.literal(half, _COUNT)),
    )
    # Real elements make no imaginary parts at both ends; ignore them.
    imaginary = e.select(
        _along_last(ends, x),
        views.zeros(x.type.with_dtype(real)),
        complex_numbers.imag(x),
    )
    x = complex_numbers.make_complex(complex_numbers.real(x), imaginary)
    mirrored = complex_numbers.conj(views.rev(x, axes=(len(outer),)))
    of_even, of_odd = e.add(x, mirrored), e.sub(x, mirrored)
    quarter = _quarter(half + 1, n, sign=1, real=real)
    rotated = e.mul(of_odd, _along_last(quarter, of_odd))
    pairs = _four_steps(
        slicing.slice_along(e.add(of_even, rotated), len(outer), 0, half), sign=1
    )
    parts = (complex_numbers.real(pairs), complex_numbers.imag(pairs))
    columns = [views.reshape(p, shape=(*outer, half, 1)) for p in parts]
    joined = slicing.concatenate(*columns, axis=len(outer) + 1)
    return views.reshape(joined, shape=(*outer, n))


def _quarter(count: int, n: int, sign: int, real: DType) -> Atom:
    """Return the factors sign * i * exp(sign * 2i pi k / n) for k below ``count``."""
    k = views.iota(shape=(count,), axis=0, dtype=_COUNT)
    unit = _unit(k, n, sign, real)
    sine, cosine = complex_numbers.imag(unit), complex_numbers.real(unit)
    # i * (cosine + i * sine) is -sine + i * cosine.
    if sign < 0:
        return complex_numbers.make_complex(sine, e.neg(cosine))
    return complex_numbers.make_complex(e.neg(sine), cosine)


def _along_last(vector: Atom, like: Atom) -> Atom:
    """Return ``vector`` repeated in every row of an array shaped as ``like``."""
    shape = like.type.shape
    return views.broadcast_in_dim(vector, shape=shape, axes=(len(shape) - 1,))
