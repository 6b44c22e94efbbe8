"""Short-time Fourier transforms, and power spectra by averaging them.

Welch, The use of fast Fourier transform for the estimation of power spectra (1967).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes, fft, lax
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.primitives.windowed import sliding_windows
from arrayfn.scipy.signal.trends import detrend as _detrend
from arrayfn.tracing import apply

# Windows w[t] = c[0] - c[1] cos(a) + c[2] cos(2 a) - ..., a = 2 pi t / length, by c.
_COSINES: Final[dict[str, tuple[float, ...]]] = {
    "boxcar": (1.0,),
    "hann": (0.5, 0.5),
    "hamming": (0.54, 0.46),
    "blackman": (0.42, 0.5, 0.08),
}


# The arguments of ``pad`` for each way in which a signal is continued at its ends.
_BOUNDARIES: Final[dict[str, dict[str, Any]]] = {
    "zeros": {},
    "constant": {"mode": "edge"},
    "even": {"mode": "reflect"},
    "odd": {"mode": "reflect", "reflect_type": "odd"},
}


def _window(window: Any, length: int) -> Any:
    """Return the values (length,) of a window, which is a name or a vector.

    Named windows are periodic: the value that would follow equals the first. A vector
    may have any length here. Other arrays and names raise ArgumentError.
    """
    if isinstance(window, str):
        if window not in _COSINES:
            raise ArgumentError(
                f"windows are {', '.join(_COSINES)} or an array of values, not "
                f"{window!r}",
                user_location(),
            )
        angle = 2 * np.pi * np.arange(length) / length
        terms = enumerate(_COSINES[window])
        return sum((-1) ** k * c * np.cos(k * angle) for k, c in terms)
    values = np.asarray(window, np.float64)
    if values.ndim != 1:
        raise ArgumentError(
            f"a window must be a vector, not an array of shape {values.shape}",
            user_location(),
        )
    return values


class _Segments:
    """How a signal of ``extent`` elements is cut into windowed segments.

    ``name`` is the function that errors mention. Attributes, all in elements:
    ``length`` of a segment (256 by default, or that of the window vector), ``overlap``
    (by default half a segment), ``step`` from one segment to the next, and ``nfft``,
    the length of the Fourier transforms. ``window`` has the window's values (length,).
    Raises ArgumentError if they do not fit together.
    """

    def __init__(
        self,
        name: str,
        extent: int,
        window: Any,
        nperseg: int | None,
        noverlap: int | None,
        nfft: int | None,
    ) -> None:
        """Fill in defaults, and check that window, overlap and transforms fit."""
        if nperseg is None:
            nperseg = 256 if isinstance(window, str) else len(window)
        if isinstance(window, str):
            # A short signal is one segment. A window vector has a fixed length.
            nperseg = min(nperseg, extent)
        self.length = nperseg
        self.window = _window(window, nperseg)
        self.overlap = nperseg // 2 if noverlap is None else noverlap
        self.nfft = nperseg if nfft is None else nfft
        self.step = self.length - self.overlap
        if len(self.window) != nperseg or self.step < 1 or self.nfft < nperseg:
            raise ArgumentError(
                f"{name}: segments of {nperseg} take a window of that length (not "
                f"{len(self.window)}), a smaller overlap (not {self.overlap}) and "
                f"transforms as long (not {self.nfft})",
                user_location(),
            )


def _spectra(x: Array, cut: _Segments, detrend: Any, onesided: bool) -> Array:
    """Return the transform (..., segments, f) of each windowed segment of ``x``.

    ``x`` is the signal along the last axis, and ``cut`` says how it is segmented.
    ``detrend`` is False, or the type of trend to remove from each segment ("constant"
    or "linear"). With ``onesided``, only frequencies from 0 on are computed.
    """
    ndim = len(x.shape)
    # All segments, overlapping: (..., segments, length).
    segments = apply(
        sliding_windows,
        x,
        axes=(ndim - 1,),
        sizes=(cut.length,),
        strides=(cut.step,),
        dilations=(1,),
        order=tuple(range(ndim + 1)),
    )
    if detrend:
        segments = _detrend(segments, type=detrend)
    real = dtypes.real_of(x.dtype)
    windowed = anp.multiply(segments, cut.window.astype(real))
    transform = fft.rfft if onesided else fft.fft
    return transform(windowed, cut.nfft)


def _frequencies(cut: _Segments, fs: float, onesided: bool) -> Array:
    """Return the frequencies of the transforms, for a sampling frequency ``fs``."""
    return (fft.rfftfreq if onesided else fft.fftfreq)(cut.nfft, 1 / fs)


def stft(
    x: ArrayLike,
    fs: float = 1.0,
    window: Any = "hann",
    nperseg: int = 256,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = False,
    return_onesided: bool = True,
    boundary: str | None = "zeros",
    padded: bool = True,
    axis: int = -1,
) -> tuple[Array, Array, Array]:
    """Compute the Fourier transform of each windowed segment of x.

    The results are frequencies, times and the transform. Segments of ``nperseg``
    elements overlap by ``noverlap`` (None: half). ``boundary`` extends the signal by
    half a segment on both sides. "zeros" adds zeros, and "constant" repeats the
    outermost element. "even" mirrors the signal at that element, and "odd" also changes
    its sign around it. ``padded`` completes the last segment with zeros. The transform
    has frequencies in place of ``axis``, and a last axis for the segments. Its scale is
    SciPy's "spectrum": a sine of amplitude 1 gives 1/2.
    """
    (x,) = ops.floated("stft", x)
    position = ops.normalize_axis("stft", axis, len(x.shape))
    x = anp.moveaxis(x, position, -1)
    cut = _Segments("stft", x.shape[-1], window, nperseg, noverlap, nfft)
    if boundary not in (None, *_BOUNDARIES):
        raise ArgumentError(
            f"stft has the boundaries {', '.join(_BOUNDARIES)} and None, not "
            f"{boundary!r}",
            user_location(),
        )
    # Zeros on both sides are added later, together with those at the end.
    side = cut.length // 2 if boundary else 0
    if boundary not in (None, "zeros"):
        if side >= x.shape[-1]:
            raise ShapeError(
                f"stft: the boundary {boundary!r} takes more than {side} elements, "
                f"half a segment, not {x.shape[-1]}",
                user_location(),
            )
        ends = [(0, 0)] * (x.ndim - 1) + [(side, side)]
        x, side = anp.pad(x, ends, **_BOUNDARIES[boundary]), 0
    extent = x.shape[-1] + 2 * side
    # Zeros to add, so that the segments end with the signal.
    missing = -(extent - cut.length) % cut.step if padded else 0
    x = _bordered(x, side, side + missing)
    onesided = return_onesided and x.dtype not in dtypes.COMPLEX
    spectra = anp.divide(_spectra(x, cut, detrend, onesided), float(np.sum(cut.window)))
    count = spectra.shape[-2]
    middle = 0.0 if boundary else cut.length / 2
    times = (np.arange(count) * cut.step + middle) / fs
    return _frequencies(cut, fs, onesided), times, anp.moveaxis(spectra, -1, position)


def _bordered(x: Array, low: int, high: int) -> Array:
    """Add ``low`` zeros before, and ``high`` zeros after, the last axis of x."""
    config = [(0, 0, 0)] * (len(x.shape) - 1)
    return lax.pad(x, 0, [*config, (low, high, 0)])


def istft(
    Zxx: ArrayLike,
    fs: float = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    input_onesided: bool = True,
    boundary: bool = True,
    time_axis: int = -1,
    freq_axis: int = -2,
) -> tuple[Array, Array]:
    """Compute times, and the signal whose ``stft`` is ``Zxx``, by weighted overlap-add.

    The arguments are those of ``stft``. ``boundary`` removes the half segment at both
    ends that ``stft`` added. The signal is the least-squares estimate of Griffin and
    Lim, Signal estimation from modified short-time Fourier transform (1984): sum(window
    * segment) / sum(window**2) at each time.
    """
    type = ops.type_of_operand("istft", Zxx)
    times_at = ops.normalize_axis("istft", time_axis, type.ndim)
    bins_at = ops.normalize_axis("istft", freq_axis, type.ndim)
    z = anp.moveaxis(Zxx, (times_at, bins_at), (-2, -1))
    bins, count = z.shape[-1], z.shape[-2]
    whole = 2 * (bins - 1) if input_onesided else bins
    length = whole if nperseg is None else nperseg
    cut = _Segments("istft", length, window, length, noverlap, nfft)
    if input_onesided:
        segments = fft.irfft(z, cut.nfft)
    else:
        segments = fft.ifft(z, cut.nfft)
    segments = segments[..., : cut.length]
    real = dtypes.real_of(segments.dtype)
    weights = cut.window.astype(real)
    scaled = anp.multiply(segments, weights * real.type(np.sum(cut.window)))
    extent = cut.length + (count - 1) * cut.step
    total = _added(scaled, cut, extent)
    norm = np.zeros(extent)
    for k in range(count):
        norm[k * cut.step : k * cut.step + cut.length] += cut.window**2
    # Where no window reaches, the sum is 0 too; divide by 1.
    norm = np.where(norm > 1e-10, norm, 1.0).astype(real)
    signal = anp.divide(total, norm)
    if boundary:
        side = cut.length // 2
        signal = signal[..., side : extent - side]
    times = np.arange(signal.shape[-1]) / fs
    # The signal's axis replaces the first of the two.
    position = min(times_at, bins_at)
    return times, anp.moveaxis(signal, -1, position)


def _added(segments: Array, cut: _Segments, extent: int) -> Array:
    """Add overlapping segments at distances of ``cut.step``, to ``extent`` elements.

    Segments (..., count, length) are cut into pieces of one step. Piece k of segment s
    belongs to step s + k of the signal, so the sum over k of the pieces, shifted by k
    rows, is the signal.
    """
    pieces = -(-cut.length // cut.step)  # in a segment: ceil(length / step)
    missing = pieces * cut.step - cut.length
    wide = _bordered(segments, 0, missing)
    *outer, count, _ = wide.shape
    parts = anp.reshape(wide, (*outer, count, pieces, cut.step))
    total = None
    for k in range(pieces):
        rows = parts[..., k, :]
        # Add k rows of zeros before, and the rest behind: (low, high, interior).
        around = [(0, 0, 0)] * len(outer) + [(k, pieces - 1 - k, 0), (0, 0, 0)]
        shifted = lax.pad(rows, 0, around)
        total = shifted if total is None else anp.add(total, shifted)
    flat = anp.reshape(total, (*outer, (count + pieces - 1) * cut.step))
    return flat[..., :extent]


def csd(
    x: ArrayLike,
    y: ArrayLike,
    fs: float = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Array, Array]:
    """Compute frequencies, and the cross power spectral density of x and y.

    Welch's method takes the mean of conj(X) Y over windowed segments, for the
    transforms X and Y of the segments. ``average="median"`` takes the median instead,
    and removes its bias. The arguments are those of ``stft``. ``scaling`` is "density"
    (per unit of frequency) or "spectrum". The shorter of x and y is padded with zeros.
    """
    same = y is x
    dtype = ops.floating_dtype(ops.common_dtype("csd", (x, y)))
    first, second = (ops.as_array(ops.convert(v, dtype)) for v in (x, y))
    position = ops.normalize_axis("csd", axis, max(first.ndim, second.ndim))
    length = max(first.shape[axis], second.shape[axis])
    x = _lengthened(anp.moveaxis(first, axis, -1), length)
    y = x if same else _lengthened(anp.moveaxis(second, axis, -1), length)
    cut = _Segments("csd", x.shape[-1], window, nperseg, noverlap, nfft)
    onesided = return_onesided and x.dtype not in dtypes.COMPLEX
    if scaling == "density":
        scale = 1.0 / (fs * float(np.sum(cut.window**2)))
    elif scaling == "spectrum":
        scale = 1.0 / float(np.sum(cut.window)) ** 2
    else:
        raise ArgumentError(
            f"csd has the scalings 'density' and 'spectrum', not {scaling!r}",
            user_location(),
        )
    left = _spectra(x, cut, detrend, onesided)
    right = left if y is x else _spectra(y, cut, detrend, onesided)
    power = anp.multiply(anp.conj(left), right)
    if average == "mean":
        mean = anp.mean(power, axis=-2)
    elif average == "median":
        mean = anp.divide(_median(power), _median_bias(power.shape[-2]))
    else:
        raise ArgumentError(
            f"csd averages by 'mean' or 'median', not {average!r}", user_location()
        )
    counts = np.full(mean.shape[-1], scale)
    if onesided:
        # All frequencies count twice, except 0 and the last of an even length.
        counts[1 : (cut.nfft + 1) // 2] *= 2
    result = anp.multiply(mean, counts.astype(dtypes.real_of(mean.dtype)))
    return _frequencies(cut, fs, onesided), anp.moveaxis(result, -1, position)


def _lengthened(x: Array, length: int) -> Array:
    """Pad x with zeros to ``length`` along the last axis."""
    missing = length - x.shape[-1]
    return anp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x


def _median(power: Array) -> Array:
    """Return the median over segments of the real and of the imaginary part.

    ``power`` is (..., segments, f), and the complex result (..., f).
    """
    real = anp.median(anp.real(power), axis=-2)
    return lax.complex(real, anp.median(anp.imag(power), axis=-2))


def _median_bias(count: int) -> float:
    """Return the expected median of ``count`` noise powers, relative to their mean.

    Noise powers are exponentially distributed. The formula, as in SciPy, is 1 plus the
    sum over k of 1 / (2 k + 1) - 1 / (2 k).
    """
    pairs = 2.0 * np.arange(1.0, (count - 1) // 2 + 1)
    return float(1.0 + np.sum(1.0 / (pairs + 1) - 1.0 / pairs))


def welch(
    x: ArrayLike,
    fs: float = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Array, Array]:
    """Compute frequencies, and the power spectral density of x.

    The density is the ``csd`` of x with itself.

    >>> x = np.sin(2 * np.pi * 0.25 * np.arange(1024))
    >>> frequencies, power = welch(x)
    >>> float(frequencies[np.argmax(power)])
    0.25
    """
    frequencies, power = csd(
        x,
        x,
        fs,
        window,
        nperseg,
        noverlap,
        nfft,
        detrend,
        return_onesided,
        scaling,
        axis,
        average,
    )
    return frequencies, anp.real(power)
