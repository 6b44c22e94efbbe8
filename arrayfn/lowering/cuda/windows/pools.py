"""Pooling with channels last, and its derivatives: one kernel each.

The pass ``with_padded_windows`` folds a pad of the operand into the windows' own
padding, so that no padded copy is made, and likewise the slice that is its transpose.
The kernels' threads are assigned as in ``stencils``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.ir import Atom, Equation, Literal, Program, Var, entry_of
from arrayfn.ir.layout import Shape
from arrayfn.lowering.cuda.handwritten import Handwritten, HandwrittenCall
from arrayfn.lowering.cuda.windows.pool_text import (
    CELLS,
    MAX_CELLS,
    extremum_body,
    put_body,
    sum_body,
)
from arrayfn.lowering.cuda.windows.stencils import (
    THREADS,
    Extents,
    Lanes,
    WindowAxis,
    block_count,
)
from arrayfn.lowering.libraries.calls import Pointer, pointer_of
from arrayfn.passes.reads import Reads
from arrayfn.primitives import slicing
from arrayfn.primitives.base import primitive_of
from arrayfn.primitives.window_elements import window_put
from arrayfn.primitives.window_reductions import (
    identity_of,
    reduce_window_max,
    reduce_window_min,
    reduce_window_sum,
    window_argmax,
    window_argmin,
)
from arrayfn.primitives.windowed import SlidingWindows
from arrayfn.records import frozen

_POSITIONS: Final = {window_argmax: reduce_window_max, window_argmin: reduce_window_min}
_REDUCTIONS: Final = (reduce_window_sum, reduce_window_max, reduce_window_min)
_FORWARD: Final = (*_REDUCTIONS, *_POSITIONS)
_POOLING: Final = (*_FORWARD, window_put)
_MAX_TAPS: Final = 32  # elements of a window
_MAX_WIDTH: Final = 9  # columns of a window
_MIN_RESULTS: Final = 1 << 10
"""Results that are worth a separate kernel. Fewer are better fused with others."""
_NO_PADDING: Final = ((0, 0), (0, 0))


@frozen
class _Geometry:
    """Windows over two neighbouring axes of [batch, height, width, channel].

    ``extents`` are the height and width, ``counts`` the numbers of windows along them.
    Axes before the two count as one ``batch``, and axes after them as ``channels``.
    """

    windows: SlidingWindows
    batch: int
    extents: Shape
    counts: Shape
    channels: int

    @staticmethod
    def of(windows: SlidingWindows, shape: Shape, dtype: DType) -> _Geometry | None:
        """Return the geometry of ``windows`` over an array; None if no kernel fits.

        ``shape`` and ``dtype`` are the array's.
        """
        # Two axes, as many as ``_NO_PADDING`` has pairs for.
        if dtype not in dtypes.FLOATS or len(windows.axes) != len(_NO_PADDING):
            return None
        first, second = windows.axes
        channels = math.prod(shape[second + 1 :])
        counts = windows.count(shape)
        size = math.prod(windows.shape(shape))
        if (
            second != first + 1
            or channels % Lanes(dtype).count
            or math.prod(windows.sizes) > _MAX_TAPS
            or windows.sizes[1] > _MAX_WIDTH
            or size < _MIN_RESULTS
        ):
            return None
        batch, extents = math.prod(shape[:first]), shape[first : second + 1]
        return _Geometry(windows, batch, extents, counts, channels)

    @property
    def padding(self) -> tuple[tuple[int, int], ...]:
        """The padding before and after each of the two axes."""
        return self.windows.padding or _NO_PADDING

    @property
    def apart(self) -> bool:
        """Whether windows neither overlap nor reach outside."""
        pairs = zip(self.windows.strides, self.windows.sizes, strict=True)
        return self.padding == _NO_PADDING and all(a >= b for a, b in pairs)

    def window_extents(self) -> Extents:
        """Return the extents of a kernel whose outputs are windows."""
        (rows, columns), (height, width) = self.counts, self.extents
        return Extents(self.batch, rows, columns, height, width, self.channels)

    def along(self, k: int) -> WindowAxis:
        """Return the windows along the first (``k`` is 0) or second of the two axes."""
        w = self.windows
        before, _ = self.padding[k]
        return WindowAxis(w.sizes[k], w.strides[k], w.dilations[k], before)

    def cell_extents(self) -> Extents:
        """Return the extents of a kernel whose outputs are cells, made from windows.

        A cell has one element for each stride along each axis: see
        ``pool_text.put_body``.
        """
        cells: list[int] = []
        for (low, _), n, stride in zip(
            self.padding, self.extents, self.windows.strides, strict=True
        ):
            # From the cell of the first element to that of the last.
            cells.append((low + n - 1) // stride - low // stride + 1)
        (rows, columns), (height, width) = cells, self.counts
        return Extents(self.batch, rows, columns, height, width, self.channels, CELLS)


def is_pool(equation: Equation) -> bool:
    """Whether ``pool`` has a kernel for ``equation``."""
    return _geometry(equation) is not None


def _geometry(equation: Equation) -> _Geometry | None:
    """Return the geometry of ``equation``; None unless ``pool`` has a kernel for it.

    Reductions of windows that neither overlap nor reach outside have no kernel here.
    """
    primitive, params = equation.primitive, dict(equation.params)
    if primitive not in _POOLING:
        return None
    params.pop("extents", None)
    is_put = primitive is window_put
    x = equation.outputs[0].type if is_put else equation.inputs[0].type
    geometry = _Geometry.of(SlidingWindows(**params), x.shape, x.dtype)
    if geometry is None:
        return None
    if not is_put:
        is_pooled = not geometry.apart and geometry.window_extents().fits()
        return geometry if is_pooled else None
    strides, dilations = geometry.windows.strides, geometry.windows.dilations
    fits = math.prod(strides) <= MAX_CELLS and max(dilations) == 1
    return geometry if fits and geometry.cell_extents().fits() else None


# The pass.


def with_padded_windows(program: Program) -> Program:
    """Fold pads and slices into windows that ``pool`` can compute then.

    A pad is folded into the reduction of windows that reads it, and a slice into the
    ``window_put`` whose result it cuts.
    """
    if all(equation.primitive not in _POOLING for equation in program.equations):
        return program
    definitions = program.definitions()
    constants = dict(program.constant_pairs())
    equations: list[Equation] = []
    for equation in program.equations:
        folded = _with_pad_before(equation, definitions, constants)
        folded = folded or _with_cut_after(equation, definitions) or equation
        outputs, source = equation.outputs, equation.source
        equations.append(replace(folded, outputs=outputs, source=source))
    return replace(program, equations=tuple(equations))


def _with_pad_before(
    equation: Equation,
    definitions: Mapping[Var, Equation],
    constants: Mapping[Var, Any],
) -> Equation | None:
    """Fold the pad of its operand into ``equation``, a reduction of windows.

    None if there is no such pad, or if its value is not the reduction's identity.
    ``definitions`` has the equation that makes each Var, ``constants`` the values of
    the Program's constants.
    """
    primitive = primitive_of(equation)
    if primitive not in _FORWARD or "padding" in equation.params:
        return None
    (x,) = equation.inputs
    pad = entry_of(x, definitions)
    if pad is None or pad.primitive is not slicing.pad:
        return None
    unpadded, fill = pad.inputs
    identity = identity_of(primitive, unpadded.type.dtype)
    value = fill.value if isinstance(fill, Literal) else constants.get(fill)
    if value is None or value != identity:
        return None
    return _with_padding(equation, pad, (unpadded,), sign=1)


def _with_cut_after(
    equation: Equation, definitions: Mapping[Var, Equation]
) -> Equation | None:
    """Fold ``equation``, a slice, into the ``window_put`` whose result it cuts.

    The slice is a pad with negative widths. None if there is no such ``window_put``.
    ``definitions`` has the equation that makes each Var.
    """
    if equation.primitive is not slicing.pad:
        return None
    x = equation.inputs[0]
    put = entry_of(x, definitions)
    if put is None or put.primitive is not window_put or "padding" in put.params:
        return None
    extents = tuple(equation.outputs[0].type.shape[axis] for axis in put.params["axes"])
    replaced = replace(put, params={**put.params, "extents": extents})
    return _with_padding(replaced, equation, put.inputs, sign=-1)


def _with_padding(
    equation: Equation, pad: Equation, inputs: tuple[Atom, ...], sign: int
) -> Equation | None:
    """Give ``equation`` the padding of ``pad``; None if ``pool`` has no kernel then.

    The new operands are ``inputs``. ``sign`` is -1 if ``pad`` has negative widths. None
    also if ``pad`` inserts elements between others, cuts elements off, or pads axes
    without windows.
    """
    config: slicing.PadConfig = pad.params["config"]
    axes = equation.params["axes"]
    for axis, (low, high, between) in enumerate(config):
        cuts = min(low * sign, high * sign) < 0
        if between or cuts or ((low or high) and axis not in axes):
            return None
    padding = tuple((config[a][0] * sign, config[a][1] * sign) for a in axes)
    params = {**equation.params, "padding": padding}
    padded = Equation.infer(equation.primitive, inputs, params, equation.source)
    return padded if is_pool(padded) else None


# The kernels.


def pairs_of(program: Program) -> dict[Equation, Equation]:
    """Find pairs of equations that compute extrema of windows and their positions.

    The result maps each equation of a pair to the other. One kernel computes both.
    """
    first_by_key: dict[tuple[Any, ...], Equation] = {}
    pairs: dict[Equation, Equation] = {}
    for equation in program.equations:
        primitive = primitive_of(equation)
        if primitive not in _FORWARD or not is_pool(equation):
            continue
        extremum = _POSITIONS.get(primitive, primitive)
        key = extremum, equation.inputs, tuple(sorted(equation.params.items()))
        other = first_by_key.setdefault(key, equation)
        if other.primitive is not primitive:
            pairs[equation], pairs[other] = other, equation
    return pairs


def pool(equation: Equation, other: Equation | None, reads: Reads) -> HandwrittenCall:
    """Return the call that computes ``equation`` and the ``other`` of its pair.

    ``other`` may be None. ``reads`` says where operands lie.
    """
    geometry = _geometry(equation)
    assert geometry is not None
    if equation.primitive is window_put:
        return _put(equation, geometry, reads)
    results = {eq.primitive: eq.outputs[0] for eq in (equation, other) if eq}
    x = equation.inputs[0]
    lanes, axes = Lanes(x.type.dtype), (geometry.along(0), geometry.along(1))
    integers = geometry.window_extents().integers(lanes.count)
    if reduce_window_sum in results:
        body = sum_body(lanes, axes)
        writes = {"sums": Pointer(results[reduce_window_sum])}
    else:
        # The pair: an extremum, its position, or both. ``_POSITIONS`` gives for each
        # argmin or argmax primitive the one that computes the extremum itself.
        minimum = reduce_window_min in results or window_argmin in results
        rows_by_name = {"best": _POSITIONS.values(), "position": _POSITIONS}
        writes = {
            name: Pointer(results[row])
            for name, rows in rows_by_name.items()
            for row in rows
            if row in results
        }
        body = extremum_body(lanes, axes, tuple(writes), minimum=minimum)
    text = Handwritten(
        "windows",
        body,
        THREADS,
        "Windows of channels, reduced.",
        "windows that are read where they lie",
    )
    return HandwrittenCall(
        text,
        reads={"x": pointer_of(x, reads)},
        writes=writes,
        integers=integers,
        blocks=block_count(integers),
    )


def _put(equation: Equation, geometry: _Geometry, reads: Reads) -> HandwrittenCall:
    """Return the call that computes a ``window_put``.

    ``reads`` says where operands lie.
    """
    values, positions = (pointer_of(atom, reads) for atom in equation.inputs)
    (output,) = equation.outputs
    lanes = Lanes(output.type.dtype)
    integers = geometry.cell_extents().integers(lanes.count)
    integers["whole_rows"], integers["whole_columns"] = geometry.extents
    axes = geometry.along(0), geometry.along(1)
    text = Handwritten(
        "windows",
        put_body(lanes, axes),
        THREADS,
        "Puts windows' values at their extrema: elements look at their windows.",
        "windows that are read where they lie",
    )
    return HandwrittenCall(
        text,
        reads={"values": values, "positions": positions},
        writes={"sums": Pointer(output)},
        integers=integers,
        blocks=block_count(integers),
    )
