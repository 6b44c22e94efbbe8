"""Gather, scatter and dynamic slices: reading and writing at computed positions.

The semantics are XLA's, in the terms of ``windows``. No mode touches memory outside the
operand. Updates are combined in the row-major order of the updates array, so results
are the same every time (of several updates that ``scatter`` puts at one place the last
wins).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType, PythonScalar
from arrayfn.errors import ArgumentError, DifferentiationError, ShapeError
from arrayfn.ir import ArrayType, Atom
from arrayfn.layout import Shape
from arrayfn.primitives import conversion, discrete, families, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import (
    NOT_LINEAR,
    Array,
    Dim,
    Linear,
    Operand,
    Primitive,
    Sample,
    Template,
)
from arrayfn.primitives.windows import Windows, check_mode

GATHER_MODES: Final = ("fill", "clip", "promise_in_bounds")
SCATTER_MODES: Final = ("drop", "clip")


def default_fill(dtype: DType) -> PythonScalar:
    """What gather reads outside: NaN, the least signed or greatest unsigned integer."""
    if dtype == dtypes.bool_:
        return True
    if dtype in dtypes.INEXACT:
        return float("nan")
    limits = np.iinfo(dtype)
    return int(limits.min if dtype in dtypes.SIGNED else limits.max)


def _zeros(type: ArrayType) -> Atom:
    return views.broadcast_literal(0, type)


def _known(operand: Operand) -> Atom:
    assert not isinstance(operand, Linear)
    return operand


# gather


def _gather_types(
    x: ArrayType,
    indices: ArrayType,
    *,
    sizes: Shape,
    mode: str,
    fill_value: PythonScalar | None,
    unique_indices: bool = False,
    **windows: Any,
) -> ArrayType:
    check_mode("gather", mode, GATHER_MODES)
    if (fill_value is None) == (mode == "fill"):
        raise ArgumentError("gather has a fill_value in mode 'fill' and in no other")
    geometry = Windows(**windows)
    geometry.check("gather", x, indices, sizes)
    return x.with_shape(geometry.shape(indices.shape, sizes))


def _gather_reference(
    x: Array,
    indices: Array,
    *,
    sizes: Shape,
    mode: str,
    fill_value: PythonScalar | None,
    unique_indices: bool = False,
    **windows: Any,
) -> Array:
    places, inside = Windows(**windows).positions(
        x.shape, indices, sizes, clip=mode != "fill"
    )
    result = np.full(places.shape, 0 if fill_value is None else fill_value, x.dtype)
    result[inside] = np.ravel(x)[places[inside]]
    return result


def _gather_jvp(
    primals: Sequence[Atom],
    outputs: Sequence[Atom],
    tangents: Sequence[Atom | None],
    **params: Any,
) -> list[Atom | None]:
    if tangents[0] is None:
        return [None]
    if params["mode"] == "fill":
        params["fill_value"] = 0
    return [gather(tangents[0], primals[1], **params)]


def _gather_transpose(
    cotangents: Sequence[Atom | None],
    inputs: Sequence[Operand],
    *,
    sizes: Shape,
    mode: str,
    fill_value: PythonScalar | None,
    unique_indices: bool = False,
    **windows: Any,
) -> list[Atom | None]:
    (ct,), (x, indices) = cotangents, inputs
    if ct is None or not isinstance(x, Linear):
        return [None, None]
    value = scatter_add(
        _zeros(x.type),
        _known(indices),
        ct,
        mode="drop" if mode == "fill" else "clip",
        unique_indices=unique_indices,
        **windows,
    )
    return [value, None]


def _gather_batch(
    size: int,
    inputs: Sequence[Atom],
    dims: Sequence[Dim],
    *,
    sizes: Shape,
    mode: str,
    fill_value: PythonScalar | None,
    unique_indices: bool = False,
    **windows: Any,
) -> tuple[list[Atom], list[Dim]]:
    x, indices = (
        v if dim is None else views.move_axis(v, dim, 0)
        for v, dim in zip(inputs, dims, strict=True)
    )
    geometry = Windows(**windows)
    if dims[0] is None:
        geometry = geometry.mapped_indices()
    elif dims[1] is None:
        geometry, sizes = geometry.mapped_operand(), (size, *sizes)
    else:
        geometry, sizes = geometry.mapped_together(), (1, *sizes)
    rest = {"sizes": sizes, "mode": mode, "fill_value": fill_value}
    if unique_indices and dims[0] is not None:
        rest["unique_indices"] = True  # in each of several operands
    return [gather(x, indices, **geometry.params(), **rest)], [0]


_ROWS_OF = Windows((1,), (0,), (0,))  # x[i]: rows of a matrix
_PATCHES_OF = Windows((1, 2), (), (1, 0))  # windows of a matrix, column index first
_ALONG = Windows((), (0, 1), (0, 1))  # x[i, j]: single elements
_BATCHED = Windows((1,), (), (1,), ((0,), (0,)))  # a window of each row
_FIRST = Windows((0,), (1,), (1,))  # columns, the window axis first


def _values(shape: Shape, seed: int, dtype: DType = dtypes.float32) -> Array:
    return families.random_array(dtype, shape, seed, -3.0, 3.0)


def _gather_samples() -> Iterable[Sample]:
    # Negative and too great indices among them.
    rows = np.array([[[2], [0]], [[5], [2]], [[-1], [1]]], np.int32)
    corners = np.array([[0, 1], [2, 2], [3, 0], [-1, 1], [1, 1]], np.int64)
    for mode in GATHER_MODES:
        fill = 0.5 if mode == "fill" else None
        for geometry, shape, indices, sizes in (
            (_ROWS_OF, (4, 3), rows, (1, 3)),
            (_PATCHES_OF, (4, 5), corners, (2, 3)),
            (_ALONG, (3, 3), corners, (1, 1)),
            (_BATCHED, (5, 6), corners[:, :1], (1, 4)),
            (_FIRST, (3, 4), corners[:, 1:], (2, 1)),
        ):
            params = {"sizes": sizes, "mode": mode, "fill_value": fill}
            x = _values(shape, 71)
            yield Sample((x, indices), {**geometry.params(), **params})
    for position, dtype in enumerate(dtypes.SHORT_NAMES):
        x = _values((4, 3), 72 + position, dtype)
        fill = default_fill(dtype)
        params = {"sizes": (1, 3), "mode": "fill", "fill_value": fill}
        # A NaN would hide what finite differences say of the elements around it.
        wrt = None if fill == fill else ()
        yield Sample((x, rows.astype(np.uint8)), {**_ROWS_OF.params(), **params}, wrt)


gather = Primitive(
    name="gather",
    family="indexing",
    types=_gather_types,
    reference=_gather_reference,
    kernel=Template("gather"),
    jvp=_gather_jvp,
    transpose=_gather_transpose,
    batch=_gather_batch,
    samples=_gather_samples,
    doc="Windows of the first operand at the positions in the second. A window that "
    "sticks out is fill_value as a whole ('fill'), or moved inwards ('clip', and "
    "'promise_in_bounds', which says that there is none). unique_indices, which may be "
    "absent, says that no two windows meet.",
)


# scatter


def promised(unique_indices: bool, indices_are_sorted: bool) -> dict[str, bool]:
    """The params of a scatter that say what is known of its indices.

    That they ascend, row by row, is said only where it is so.
    """
    promises = {"unique_indices": unique_indices}
    return promises | ({"indices_are_sorted": True} if indices_are_sorted else {})


def _scatter_types(name: str, allowed: frozenset[DType]) -> Callable[..., ArrayType]:
    def types(
        x: ArrayType,
        indices: ArrayType,
        updates: ArrayType,
        *,
        mode: str,
        unique_indices: bool,
        indices_are_sorted: bool = False,
        **windows: Any,
    ) -> ArrayType:
        check_mode(name, mode, SCATTER_MODES)
        families.common_dtype(name, (x, updates), allowed)
        geometry = Windows(**windows)
        kept = geometry.kept(x.ndim)
        if len(kept) != len(geometry.window_axes) or any(
            not 0 <= axis < updates.ndim for axis in geometry.window_axes
        ):
            raise ShapeError(
                f"{name}: {x} keeps {len(kept)} axes, which window axes "
                f"{geometry.window_axes} do not name in updates ({updates})"
            )
        sizes = geometry.sizes(x.ndim, updates.shape)
        geometry.check(name, x, indices, sizes)
        wanted = geometry.shape(indices.shape, sizes)
        if updates.shape != wanted:
            raise ShapeError(
                f"{name}: updates for {indices} have shape {wanted}, not {updates}"
            )
        return x.with_shape(x.shape)

    return types


def _scatter_reference(combine: Callable[..., None]) -> Callable[..., Array]:
    def reference(
        x: Array,
        indices: Array,
        updates: Array,
        *,
        mode: str,
        unique_indices: bool,
        indices_are_sorted: bool = False,
        **windows: Any,
    ) -> Array:
        geometry = Windows(**windows)
        places, inside = geometry.positions(
            x.shape, indices, geometry.sizes(x.ndim, updates.shape), mode == "clip"
        )
        result = np.array(x, order="C")
        with np.errstate(all="ignore"):
            combine(result.reshape(-1), places[inside], updates[inside])
        return result

    return reference


def _put(x: Array, places: Array, updates: Array) -> None:
    x[places] = updates


def _scatter_batch(row: Callable[..., Any]) -> Callable[..., Any]:
    def batch(
        size: int,
        inputs: Sequence[Atom],
        dims: Sequence[Dim],
        *,
        mode: str,
        unique_indices: bool,
        indices_are_sorted: bool = False,
        **windows: Any,
    ) -> tuple[list[Atom], list[Dim]]:
        x, indices, updates = inputs
        promises = promised(unique_indices, indices_are_sorted)
        geometry = Windows(**windows)
        if dims[1] is None:
            geometry = geometry.mapped_operand()
        else:
            indices = views.move_axis(indices, dims[1], 0)
            geometry = geometry.mapped_together()
        value = row()(
            views.batched(size, x, dims[0]),
            indices,
            views.batched(size, updates, dims[2]),
            mode=mode,
            **promises,
            **geometry.params(),
        )
        return [value], [0]

    return batch


def _gather_back(x: Atom, indices: Atom, updates: ArrayType, **params: Any) -> Atom:
    """What ``x`` has at the places where scatter with these params puts updates."""
    mode, _ = params.pop("mode"), params.pop("unique_indices")
    params.pop("indices_are_sorted", None)
    sizes = Windows(**params).sizes(x.type.ndim, updates.shape)
    return gather(
        x,
        indices,
        sizes=sizes,
        mode="fill" if mode == "drop" else "clip",
        fill_value=0 if mode == "drop" else None,
        **params,
    )


def _scatter_samples(
    allowed: frozenset[DType], low: float = -3.0, unique_only: bool = False
) -> Callable[[], Iterable[Sample]]:
    """Samples with places hit several times, and outside; and some hit once."""
    often = np.array([[2], [0], [5], [2], [-1], [1], [2]], np.int32)
    once = np.array([[2], [0], [7], [1]], np.int64)

    def draw(dtype: DType, shape: Shape, seed: int) -> Array:
        return families.random_array(dtype, shape, seed, low, 3.0)

    def samples() -> Iterable[Sample]:
        real = dtypes.float32
        for mode in SCATTER_MODES:
            for unique, indices in ((False, often), (True, once)):
                if unique and mode == "clip":
                    indices = once[:2]
                n = len(indices)
                params = {"mode": mode, "unique_indices": unique}
                wrt = (0,) if unique_only and not unique else None
                for geometry, shape, given, window in (
                    (_ROWS_OF, (4, 3), indices, (n, 3)),
                    (Windows((), (0,), (0,)), (4,), indices, (n,)),
                    (_BATCHED, (n, 4), indices, (n, 1)),
                ):
                    inputs = (draw(real, shape, 73), given, draw(real, window, 74))
                    yield Sample(inputs, {**geometry.params(), **params}, wrt)
        patches = np.array([[0, 1], [2, 2], [1, 0]], np.int64)
        params = {"mode": "drop", "unique_indices": False}
        wrt = (0,) if unique_only else None
        inputs = (draw(real, (4, 5), 75), patches, draw(real, (3, 2, 3), 76))
        yield Sample(inputs, {**_PATCHES_OF.params(), **params}, wrt)
        for position, dtype in enumerate(dtypes.SHORT_NAMES):
            if dtype in allowed:
                x, y = draw(dtype, (4, 3), 77), draw(dtype, (7, 3), 78 + position)
                yield Sample((x, often, y), {**_ROWS_OF.params(), **params}, wrt)

    return samples


def _scatter_row(
    name: str,
    combine: Callable[..., None],
    allowed: frozenset[DType],
    jvp: Callable[..., Any],
    transpose: Any = NOT_LINEAR,
    *,
    doc: str,
    low: float = -3.0,
    unique_only: bool = False,
) -> Primitive:
    row = Primitive(
        name=name,
        family="indexing",
        types=_scatter_types(name, allowed),
        reference=_scatter_reference(combine),
        kernel=Template(name, in_place=True),
        jvp=jvp,
        transpose=transpose,
        batch=_scatter_batch(lambda: row),
        samples=_scatter_samples(allowed, low, unique_only),
        doc=doc,
    )
    return row


def _scatter_jvp(
    primals: Sequence[Atom],
    outputs: Sequence[Atom],
    tangents: Sequence[Atom | None],
    **params: Any,
) -> list[Atom | None]:
    x, indices, updates = primals
    dx, _, du = tangents
    if dx is None and du is None:
        return [None]
    if dx is None:
        dx = _zeros(x.type)
    if params["unique_indices"]:
        du = _zeros(updates.type) if du is None else du
        return [scatter(dx, indices, du, **params)]
    # Number the updates from 1 and scatter the numbers: where one arrives it won.
    count = updates.type.size
    dtype = dtypes.int32 if count < 2**31 - 1 else dtypes.int64
    numbers = e.add(views.iota(shape=(count,), axis=0, dtype=dtype), 1)
    numbers = views.reshape(numbers, shape=updates.type.shape)
    blank = _zeros(ArrayType(x.type.shape, dtype))
    arrived = scatter(blank, indices, numbers, **params)
    zero = conversion.literal(0, x.type.dtype)
    tangent = e.select(discrete.eq(arrived, 0), dx, zero)
    if du is None:
        return [tangent]
    won = discrete.eq(_gather_back(arrived, indices, updates.type, **params), numbers)
    return [scatter_add(tangent, indices, e.select(won, du, zero), **params)]


def _scatter_transpose(
    cotangents: Sequence[Atom | None], inputs: Sequence[Operand], **params: Any
) -> list[Atom | None]:
    (ct,), (x, indices, updates) = cotangents, inputs
    if ct is None:
        return [None, None, None]
    assert params["unique_indices"]
    where = _known(indices)
    to_x = to_updates = None
    if isinstance(x, Linear):
        to_x = scatter(ct, where, _zeros(updates.type), **params)
    if isinstance(updates, Linear):
        to_updates = _gather_back(ct, where, updates.type, **params)
    return [to_x, None, to_updates]


def _add_jvp(
    primals: Sequence[Atom],
    outputs: Sequence[Atom],
    tangents: Sequence[Atom | None],
    **params: Any,
) -> list[Atom | None]:
    dx, _, du = tangents
    if du is None:
        return [dx]
    dx = _zeros(primals[0].type) if dx is None else dx
    return [scatter_add(dx, primals[1], du, **params)]


def _add_transpose(
    cotangents: Sequence[Atom | None], inputs: Sequence[Operand], **params: Any
) -> list[Atom | None]:
    (ct,), (x, indices, updates) = cotangents, inputs
    if ct is None:
        return [None, None, None]
    to_updates = None
    if isinstance(updates, Linear):
        to_updates = _gather_back(ct, _known(indices), updates.type, **params)
    return [ct if isinstance(x, Linear) else None, None, to_updates]


def _mul_jvp(
    primals: Sequence[Atom],
    outputs: Sequence[Atom],
    tangents: Sequence[Atom | None],
    **params: Any,
) -> list[Atom | None]:
    x, indices, updates = primals
    dx, _, du = tangents
    if du is not None and not params["unique_indices"]:
        raise DifferentiationError(
            "scatter_mul differentiates by its updates only if no two of them meet: "
            "give unique_indices=True if that is so"
        )
    total = None
    if dx is not None:
        factors = scatter_mul(
            views.broadcast_literal(1, x.type), indices, updates, **params
        )
        total = e.mul(dx, factors)
    if du is not None:
        term = e.mul(_gather_back(x, indices, updates.type, **params), du)
        base = _zeros(x.type) if total is None else total
        total = scatter_add(base, indices, term, **params)
    return [total]


def _extremum_jvp(
    primals: Sequence[Atom],
    outputs: Sequence[Atom],
    tangents: Sequence[Atom | None],
    **params: Any,
) -> list[Atom | None]:
    # Of those that meet at a place, the extreme ones share the derivative equally.
    x, indices, updates = primals
    dx, _, du = tangents
    if dx is None and du is None:
        return [None]
    dtype, (y,) = x.type.dtype, outputs
    back = _gather_back(y, indices, updates.type, **params)
    x_hit = conversion.convert(discrete.eq(x, y), dtype)
    update_hit = conversion.convert(discrete.eq(updates, back), dtype)
    total = _zeros(x.type) if dx is None else e.mul(dx, x_hit)
    if du is not None:
        total = scatter_add(total, indices, e.mul(du, update_hit), **params)
    return [e.div(total, scatter_add(x_hit, indices, update_hit, **params))]


_NUMBERS = dtypes.ALL - {dtypes.bool_}
_ORDERED = _NUMBERS - dtypes.COMPLEX

scatter = _scatter_row(
    "scatter",
    _put,
    dtypes.ALL,
    _scatter_jvp,
    _scatter_transpose,
    doc="The first operand with the windows at the positions in the second replaced "
    "by the third. A window that sticks out is left out ('drop') or moved inwards "
    "('clip'); unique_indices says that no two meet, and indices_are_sorted, which may "
    "be absent, that the positions ascend.",
)
scatter_add = _scatter_row(
    "scatter_add",
    np.add.at,
    _NUMBERS,
    _add_jvp,
    _add_transpose,
    doc="As scatter, but adds.",
)
scatter_mul = _scatter_row(
    "scatter_mul",
    np.multiply.at,
    _NUMBERS,
    _mul_jvp,
    low=0.5,
    unique_only=True,
    doc="As scatter, but multiplies.",
)
scatter_min = _scatter_row(
    "scatter_min",
    np.minimum.at,
    _ORDERED,
    _extremum_jvp,
    doc="As scatter, but takes the lesser; NaN if either is.",
)
scatter_max = _scatter_row(
    "scatter_max",
    np.maximum.at,
    _ORDERED,
    _extremum_jvp,
    doc="As scatter, but takes the greater; NaN if either is.",
)

ROWS = (gather, scatter, scatter_add, scatter_mul, scatter_min, scatter_max)
