"""The discrete Fourier transform along the last axis, of complex and of real arrays.

``kind`` names NumPy's function: ``"fft"`` and ``"ifft"`` of n complex elements,
``"rfft"`` of n real ones to n // 2 + 1 complex, ``"irfft"`` back to ``length`` real
ones. ``norm`` says which direction is divided by n: ``"backward"`` (ifft, irfft),
``"forward"`` (the others), or ``"ortho"`` (each by the square root of n).

Cooley and Tukey, An algorithm for the machine calculation of complex Fourier series
(1965). Cotangents are transforms too, because the matrices are symmetric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, DTypeError, ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.primitives import (
    complex_numbers,
    conversion,
    discrete,
    factors,
    families,
    slicing,
    views,
)
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    LINEAR,
    Array,
    Library,
    Primitive,
    Sample,
    Tolerance,
)
from arrayfn.primitives.emitters import Emitter
from arrayfn.primitives.rules import batched_along, transposed_first

KINDS: Final = ("fft", "ifft", "rfft", "irfft")
NORMS: Final = ("backward", "ortho", "forward")
_FUNCTIONS: Final[dict[str, Callable[..., Array]]] = {
    "fft": np.fft.fft,
    "ifft": np.fft.ifft,
    "rfft": np.fft.rfft,
    "irfft": np.fft.irfft,
}


def factor(kind: str, length: int, norm: str) -> float:
    """Return the factor that a transform of ``length`` elements is multiplied by.

    ``kind`` is "fft", "ifft", "rfft" or "irfft"; ``norm`` is "backward", "ortho" or
    "forward", as in NumPy.

    >>> factor("ifft", 4, "backward"), factor("fft", 4, "backward")
    (0.25, 1.0)
    """
    if norm == "ortho":
        return length**-0.5
    inverse = kind in ("ifft", "irfft")
    # "backward" divides inverse transforms by the length, "forward" the others.
    return 1.0 / length if inverse == (norm == "backward") else 1.0


def _types(x: ArrayType, *, kind: str, length: int, norm: str) -> ArrayType:
    """Type rule: the dtype and last extent that the kind of transform gives.

    ``kind`` is "fft", "ifft", "rfft" or "irfft", and ``norm`` NumPy's. ``length`` is
    the number of elements of the transform: along the last axis, irfft takes
    ``length // 2 + 1`` elements, and the others ``length``. Raises an error unless
    ``x`` has these, and a dtype that the transform is defined for.
    """
    if kind not in KINDS or norm not in NORMS:
        raise ArgumentError(
            f"fft has the kinds {', '.join(KINDS)} and the norms {', '.join(NORMS)}, "
            f"not {kind!r} and {norm!r}"
        )
    reals = (dtypes.float32, dtypes.float64)
    accepted = reals if kind == "rfft" else dtypes.COMPLEX
    if x.dtype not in accepted:
        names = " and ".join(sorted(dtypes.short_name(d) for d in accepted))
        raise DTypeError(f"{kind} is defined for {names}, not for {x}")
    extent = length // 2 + 1 if kind == "irfft" else length
    if not x.ndim or length < 1 or x.shape[-1] != extent:
        raise ShapeError(
            f"{kind} of length {length} takes at least 1 element, and {extent} along "
            f"the last axis, but was given {x}"
        )
    if kind == "rfft":
        shape = (*x.shape[:-1], length // 2 + 1)
        return ArrayType(shape, dtypes.complex_of(x.dtype))
    if kind == "irfft":
        return ArrayType((*x.shape[:-1], length), dtypes.real_of(x.dtype))
    return x.with_shape(x.shape)


def _reference(x: Array, *, kind: str, length: int, norm: str) -> Array:
    """Compute the transform by NumPy's function ``kind``, along the last axis."""
    options = {"norm": norm}
    return np.asarray(_FUNCTIONS[kind](x, n=length, axis=-1, **options))


def _transpose(ct: Atom, type: ArrayType, *, kind: str, length: int, norm: str) -> Atom:
    """The transpose rule: a transform of the cotangent, as the matrix F is symmetric.

    fft, ifft: ``ct_x = F ct``. rfft: ``ct_x = real(F pad(ct))``, where ``pad`` adds
    zeros up to ``length``. irfft: ``ct_x = m * conj(rfft(ct))``, where ``m`` counts how
    often an element of the half spectrum is in the whole one.
    """
    if kind in ("fft", "ifft"):
        return fft(ct, kind=kind, length=length, norm=norm)
    if kind == "rfft":
        missing = length - ct.type.shape[-1]
        config = ((0, 0, 0),) * (ct.type.ndim - 1) + ((0, missing, 0),)
        padded = slicing.pad(ct, conversion.literal(0, ct.type.dtype), config=config)
        transform = fft(padded, kind="fft", length=length, norm=norm)
        return complex_numbers.real(transform)
    # The transposed transform keeps its factor, so rfft takes the norm that gives it.
    opposite = {"backward": "forward", "forward": "backward", "ortho": "ortho"}
    inverse = fft(ct, kind="rfft", length=length, norm=opposite[norm])
    return e.mul(complex_numbers.conj(inverse), _multiplicity(inverse.type, length))


def _multiplicity(type: ArrayType, length: int) -> Atom:
    """Return how often each element of a half spectrum is in the whole one: 1 or 2.

    Each element is there twice (once conjugated), except the first, and the last if
    ``length`` is even. ``type`` is the type of the half spectrum, and ``length`` the
    number of elements of the whole one.
    """
    position = views.iota(shape=(type.shape[-1],), axis=0, dtype=dtypes.int32)
    single = discrete.eq(position, 0)
    if length % 2 == 0:
        single = discrete.bitwise_or(single, discrete.eq(position, length // 2))
    one, two = (conversion.literal(n, type.dtype) for n in (1, 2))
    counts = e.select(single, one, two)
    return views.broadcast_in_dim(counts, shape=type.shape, axes=(type.ndim - 1,))


def _samples() -> Iterable[Sample]:
    """Yield samples of each kind of transform, length and norm, for the table tests."""
    seed = 111
    for real, wide in (
        (dtypes.float32, dtypes.complex64),
        (dtypes.float64, dtypes.complex128),
    ):
        for kind in KINDS:
            for length, norm in ((6, "backward"), (5, "ortho"), (8, "forward")):
                n = length // 2 + 1 if kind == "irfft" else length
                dtype = real if kind == "rfft" else wide
                seed += 1
                x = families.random_array(dtype, (2, n), seed, -1.5, 1.5)
                yield Sample((x,), {"kind": kind, "length": length, "norm": norm})


fft = Primitive(
    name="fft",
    factors=factors.last_axis_whole,
    family="fourier",
    types=_types,
    reference=_reference,
    kernel=Library("fft"),
    jvp=LINEAR,
    transpose=transposed_first(_transpose),
    batch=batched_along(Emitter("fft")),
    samples=_samples,
    tolerance=Tolerance(float32=4e-6, float64=1e-14),
    doc="The discrete Fourier transform along the last axis, or its inverse.",
)
