"""``x.at[index].set(y)`` and other updates, by scatters and static slices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import ArrayType, Program
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike
from arrayfn.numpy.arithmetic import (
    add,
    divide,
    maximum,
    minimum,
    multiply,
    negative,
    power,
)
from arrayfn.numpy.comparison import less, where
from arrayfn.numpy.index_bounds import index_error, known_value
from arrayfn.numpy.indexing import (
    Cut,
    Entry,
    cuts_of,
    getitem,
    index_columns,
    parse,
    place_of_arrays,
    without_bools,
)
from arrayfn.numpy.manipulation import broadcast_to, reshape
from arrayfn.numpy.rearrangement import flip
from arrayfn.primitives import dynamic_slices, indexing, reductions, slicing, views
from arrayfn.primitives.base import Primitive
from arrayfn.primitives.control_flow_while import while_loop
from arrayfn.primitives.windows import Windows
from arrayfn.tracing import (
    ImmutableArray,
    Tracer,
    apply,
    constant,
    is_made_of_equations,
    trace,
)


class IndexedUpdate:
    """The object ``x.at[index]``: each method returns a copy of x changed at ``index``.

    Updates broadcast to the shape of ``x[index]`` and take x's dtype. If an index
    repeats, ``set`` and ``power`` keep the last update; the other methods apply all of
    them. Inside ``jit`` an update out of bounds is dropped; elsewhere it raises
    IndexError. ``mode`` changes that: "drop" (or "fill"), or "clip", which updates the
    nearest element. ``unique_indices`` promises that no index repeats.
    ``indices_are_sorted`` is accepted as in JAX, and changes nothing.
    """

    def __init__(self, x: ArrayLike, index: Any) -> None:
        """Keep x and the index of the elements to change."""
        self._x = x
        self._index = index

    def get(
        self,
        *,
        mode: str | None = None,
        fill_value: Any = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return ``x[index]``.

        ``mode`` is "fill" or "clip", for indices out of bounds. "fill" reads
        ``fill_value``, by default NaN or the smallest integer. "clip" reads the nearest
        element. Without a mode, see ``getitem``. Raises ArgumentError for another mode.
        """
        if mode == "promise_in_bounds":
            mode = None
        return getitem(self._x, self._index, _checked(mode, _READ), fill_value)

    def set(
        self,
        y: ArrayLike,
        *,
        mode: str | None = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return a copy of x with y written at ``index``.

        ``mode`` says what indices out of bounds do: "drop" leaves such updates out,
        "clip" moves them to the border; by default they raise an error outside ``jit``.
        ``unique_indices`` promises that none repeats; ``indices_are_sorted`` changes
        nothing. Raises ArgumentError for another mode, and ShapeError if y does not
        broadcast to ``x[index]``.
        """
        replace = None  # there is no function of old and new elements
        return self._updated(indexing.scatter, np.put, replace, y, unique_indices, mode)

    def add(
        self,
        y: ArrayLike,
        *,
        mode: str | None = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return a copy of x with y added at ``index``.

        Keyword arguments are those of ``set``.
        """
        return self._updated(
            indexing.scatter_add, np.add.at, add, y, unique_indices, mode
        )

    def subtract(
        self,
        y: ArrayLike,
        *,
        mode: str | None = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return a copy of x with y subtracted at ``index``.

        Keyword arguments are those of ``set``.
        """
        type = ops.type_of_operand("at", self._x)
        negated = negative(ops.as_array(ops.convert(y, type.dtype)))
        return self.add(negated, mode=mode, unique_indices=unique_indices)

    def multiply(
        self,
        y: ArrayLike,
        *,
        mode: str | None = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return a copy of x multiplied by y at ``index``.

        Keyword arguments are those of ``set``.
        """
        return self._updated(
            indexing.scatter_mul, np.multiply.at, multiply, y, unique_indices, mode
        )

    def divide(
        self,
        y: ArrayLike,
        *,
        mode: str | None = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return a copy of x divided by y at ``index``.

        If an index repeats, x is divided by the product of the updates. Keyword
        arguments are those of ``set``.
        """
        type = ops.type_of_operand("at", self._x)
        ones = ops.full(1, type.shape, type.dtype)
        divisor = IndexedUpdate(ones, self._index).multiply(
            y, mode=mode, unique_indices=unique_indices
        )
        return divide(self._x, divisor)

    def power(
        self,
        y: ArrayLike,
        *,
        mode: str | None = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return a copy of x raised to the power y at ``index``.

        If an index repeats, the last update wins. Keyword arguments are those of
        ``set``.
        """
        mask = _unknown_mask(self._index)
        if mask is not None:
            return _where_masked(self._x, mask, y, power(self._x, y))
        base = self.get(mode=_before_writing(mode))
        return self.set(power(base, y), mode=mode, unique_indices=unique_indices)

    def apply(
        self,
        function: Callable[[Array], Array],
        *,
        mode: str | None = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return a copy of x with the elementwise ``function`` applied at ``index``.

        It is applied as often as an index repeats. ``unique_indices`` promises that
        none does, and saves counting. The function gets ``x[index]``, or all of x if
        the index is a mask of unknown value. ``mode`` is that of ``set``.

        >>> import numpy as np
        >>> update = IndexedUpdate(np.array([1.0, 2.0]), np.array([0, 0, 1]))
        >>> update.apply(lambda v: v * 2)
        array([4., 4.])
        """
        mask = _unknown_mask(self._index)
        if mask is not None:
            # 0 stands for updates: it passes the check that these broadcast to x.
            return _where_masked(self._x, mask, 0, function(self._x))
        if unique_indices or _never_repeats(self._x, self._index, mode):
            value = function(self.get(mode=_before_writing(mode)))
            return self.set(value, mode=mode, unique_indices=unique_indices)
        # Count how often each element occurs in the index.
        zeros = ops.full(0, ops.type_of_operand("at", self._x).shape, dtypes.int32)
        times = IndexedUpdate(zeros, self._index).add(1, mode=mode)
        return _applied(function, ops.as_array(self._x), self._index, mode, times)

    def min(
        self,
        y: ArrayLike,
        *,
        mode: str | None = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return a copy of x with the minimum of x and y at ``index``.

        Keyword arguments are those of ``set``.
        """
        return self._updated(
            indexing.scatter_min, np.minimum.at, minimum, y, unique_indices, mode
        )

    def max(
        self,
        y: ArrayLike,
        *,
        mode: str | None = None,
        unique_indices: bool = False,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return a copy of x with the maximum of x and y at ``index``.

        Keyword arguments are those of ``set``.
        """
        return self._updated(
            indexing.scatter_max, np.maximum.at, maximum, y, unique_indices, mode
        )

    mul = multiply

    def _updated(
        self,
        scatter: Primitive,
        in_place: Any,
        combine: Callable[[Array, Array], Array] | None,
        y: ArrayLike,
        unique_indices: bool,
        mode: str | None,
    ) -> Array:
        """Return a copy of x changed at the index, by the cheapest way that works.

        For NumPy arrays this is NumPy's function ``in_place`` on a copy. In traced
        code, an unknown mask is a ``where``, slices and numbers are an update of a
        slice, and arrays of positions are a ``scatter``. ``combine`` is the function of
        old and new elements, or None to replace them. y are the updates; the other
        parameters are those of ``set``.
        """
        type = ops.type_of_operand("at", self._x)
        updates = ops.convert(y, type.dtype)
        mode = _checked(mode, _WRITTEN)
        # An index with single bools: add an axis for each, then update its element.
        steps = without_bools(self._index)
        if steps is not None:
            new_axes, rest = steps
            viewed = IndexedUpdate(getitem(self._x, new_axes), rest)
            changed = viewed._updated(
                scatter, in_place, combine, updates, unique_indices, mode
            )
            return reshape(changed, type.shape)
        mask = _unknown_mask(self._index)
        # With an update for each true element, ``parse`` reads the mask's value.
        if mask is not None and not _needs_value(mask, self._x, updates):
            new = updates if combine is None else combine(self._x, updates)
            return _where_masked(self._x, mask, updates, new)
        entries = parse(self._index, type.shape, bounded=mode is None)
        arrays = [entry for entry in entries if ops.is_array(entry)]
        known = not is_made_of_equations((self._x, updates, *arrays))
        if known and not (arrays and mode):
            return _changed_copy(self._x, self._index, updates, in_place)
        if not arrays:
            new = updates if combine is None else combine(self.get(), updates)
            return _with_slice(self._x, entries, type, new)
        # The windows of a scatter are contiguous.
        if any(isinstance(e, Cut) and (e.step > 1 or e.reverse) for e in entries):
            return _scattered_flat(
                scatter, self._x, self._index, type, updates, unique_indices, mode
            )
        return _scattered(
            scatter, self._x, entries, type, updates, unique_indices, mode
        )


def _before_writing(mode: str | None) -> str | None:
    """Return the mode in which to read elements that are then written in ``mode``.

    An element out of bounds is read from the nearest place, since its update is dropped
    or moved there. The default, None, and "promise_in_bounds" give None.


    >>> _before_writing("drop")
    'clip'
    """
    return None if _checked(mode, _WRITTEN) is None else "clip"


def _never_repeats(x: ArrayLike, index: Any, mode: str | None) -> bool:
    """Return whether it is known that ``index`` has no element of ``x`` twice.

    ``mode`` is that of the update. With "clip", several positions out of bounds would
    become one, so only an index without a mode is examined.
    """
    entries: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
    if all(isinstance(e, (int, slice)) or e is None or e is ... for e in entries):
        return True
    steps = without_bools(index)
    if steps is not None:
        new_axes, rest = steps
        return _never_repeats(getitem(x, new_axes), rest, mode)
    shape = ops.type_of_operand("at", x).shape
    bounded = _checked(mode, _WRITTEN) is None
    axes = [e for e in parse(index, shape, bounded) if e is not None]
    arrays = [(e, n) for e, n in zip(axes, shape, strict=True) if ops.is_array(e)]
    if all(math.prod(ops.type_of_operand("at", e).shape) <= 1 for e, _ in arrays):
        return True
    return bounded and _all_differ([e for e, _ in arrays], [n for _, n in arrays])


def _applied(
    function: Callable[[Array], Array],
    x: Array,
    index: Any,
    mode: str | None,
    times: Array,
) -> Array:
    """Apply ``function`` to each element of x at ``index``, ``times`` times.

    ``times`` has the shape of x. If its maximum is known while tracing, the repetitions
    are unrolled. Otherwise they are a while loop. ``mode`` is that of the update.
    """
    # The number of applications for each element that ``index`` selects.
    wanted = IndexedUpdate(times, index).get(mode=_before_writing(mode))

    def once_more(done: Any, value: Array) -> Array:
        """Apply the function to elements that need more than ``done`` applications."""
        old = IndexedUpdate(value, index).get(mode=_before_writing(mode))
        new = where(less(done, wanted), ops.convert(function(old), old.dtype), old)
        return IndexedUpdate(value, index).set(new, mode=mode)

    most = apply(reductions.reduce_max, times, axes=tuple(range(len(times.shape))))
    known = known_value(most)
    if known is not None:
        for done in range(int(known)):
            x = once_more(done, x)
        return x

    def step(done: Array, most: Array, value: Array) -> list[Array]:
        """Run one iteration of the loop over (done, most, value)."""
        return [add(done, 1), most, once_more(done, value)]

    # The first application comes before the loop.
    carry = [ops.full(1, (), dtypes.int32), most, once_more(0, x)]
    types = [ops.type_of_operand("at", value) for value in carry]
    body = trace(step, types, name="apply", constants=False)
    # The primitive takes the captured values first; the trace has them last.
    inputs = body.program.inputs
    consts = len(body.captured)
    program = Program(
        body.program.name,
        (*inputs[len(carry) :], *inputs[: len(carry)]),
        body.program.equations,
        body.program.outputs,
    )
    results = apply(
        while_loop,
        *body.captured,
        *carry,
        cond_program=trace(_unfinished, types, name="unfinished").program,
        body_program=program,
        cond_consts=0,
        body_consts=consts,
    )
    _, _, value = results
    return value


def _unfinished(done: Array, most: Array, value: Array) -> list[Array]:
    """Return whether fewer than ``most`` repetitions are ``done``."""
    return [less(done, most)]


def _unknown_mask(index: Any) -> ImmutableArray | None:
    """Return ``index`` if it is one mask whose value is not known, else None."""
    mask: Any = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if not isinstance(mask, ImmutableArray) or mask.dtype != dtypes.bool_:
        return None
    return mask if known_value(mask) is None else None


def _needs_value(mask: ImmutableArray, x: ArrayLike, updates: ArrayLike) -> bool:
    """Return whether ``updates`` has one element per true element of a known mask.

    A mask is known unless it is traced and has no value. With an unknown mask, such
    updates are an error, which ``_where_masked`` raises.
    """
    inner = ops.type_of_operand("at", x).ndim - mask.ndim
    several = ops.type_of_operand("at", updates).ndim > inner
    return several and not (isinstance(mask, Tracer) and mask.value is None)


def _where_masked(x: ArrayLike, mask: Any, updates: ArrayLike, new: Any) -> Array:
    """Return x with ``new`` where ``mask``, an unknown mask, is true.

    ``updates`` are the user's updates, which must broadcast to x. Raises
    AbstractValueError for one update per true element, whose shape would depend on the
    mask's value, and IndexingError if the mask does not fit x.
    """
    shape = ops.type_of_operand("at", x).shape
    inner = len(shape) - mask.ndim  # the number of axes after those of the mask
    if shape[: mask.ndim] != mask.shape:
        raise index_error(
            f"boolean index of shape {mask.shape} does not fit an array of {shape}"
        )
    if ops.type_of_operand("at", updates).ndim > inner:
        mask.concrete(  # raises AbstractValueError
            "x.at[mask] with an update for each element that is true,",
            "Write arrayfn.numpy.where(mask, y, x), with y as long as x",
        )
    spread = reshape(mask, (*mask.shape, *(1,) * inner)) if inner else mask
    return where(spread, ops.convert(new, x.dtype), x)


# The primitives' mode for each mode of a read, and of an update.
_READ = {"fill": "fill", "drop": "fill", "clip": "clip"}
_WRITTEN = {"fill": "drop", "drop": "drop", "clip": "clip", "promise_in_bounds": None}


def _checked(mode: str | None, modes: Mapping[str, str | None]) -> str | None:
    """Return the primitives' mode for ``mode``, from the table ``modes``.

    None stays None. Raises ArgumentError for a mode that is not in the table.
    """
    if mode is not None and mode not in modes:
        raise ArgumentError(
            f"x.at[...] has no mode {mode!r}; it has "
            + ", ".join(repr(name) for name in modes),
            user_location(),
        )
    return None if mode is None else modes[mode]


def _changed_copy(x: ArrayLike, index: Any, updates: ArrayLike, in_place: Any) -> Array:
    """Return a copy of the NumPy array x, updated by NumPy's function ``in_place``.

    ``in_place`` is np.put to write, or the method ``at`` of a ufunc.
    """
    result = np.array(ops.as_array(x), order="C")
    with np.errstate(all="ignore"):
        if in_place is np.put:
            result[index] = ops.as_array(updates)
        else:
            in_place(result, index, ops.as_array(updates))
    return result


def _with_slice(
    x: ArrayLike, entries: Sequence[Entry], type: ArrayType, updates: ArrayLike
) -> Array:
    """Return ``x`` with ``updates`` at an index of Cuts, numbers and new axes.

    If all steps are 1, this is a ``dynamic_update_slice``. Otherwise, the updates are
    spread by padding between elements, and selected by a mask. ``type`` is the type of
    x.
    """
    # The shape of x[index], to which updates broadcast.
    shown = tuple(
        entry.count if isinstance(entry, Cut) else 1
        for entry in entries
        if not isinstance(entry, int)
    )
    cuts = cuts_of(entries)
    extents = tuple(cut.count for cut in cuts)
    new = reshape(broadcast_to(updates, shown), extents)
    if 0 in extents:
        return ops.same(x)
    reverse = tuple(axis for axis, cut in enumerate(cuts) if cut.reverse)
    new = flip(new, reverse) if reverse else new
    if all(cut.step == 1 for cut in cuts):
        if extents == type.shape:  # a traced array, even if nothing of x is left
            return new if isinstance(new, Tracer) else constant(new)
        starts = [np.asarray(cut.low, np.int64) for cut in cuts]
        return apply(dynamic_slices.dynamic_update_slice, x, new, *starts)
    # Widths (low, high, interior) that put each update at its place in x.
    config = tuple(
        (cut.low, extent - cut.limit, cut.step - 1)
        for cut, extent in zip(cuts, type.shape, strict=True)
    )
    spread = apply(slicing.pad, new, ops.scalar(0, type.dtype), config=config)
    ones = ops.full(True, extents, dtypes.bool_)
    inside = apply(slicing.pad, ones, ops.scalar(False, dtypes.bool_), config=config)
    return where(inside, spread, x)


def _scattered(
    scatter: Primitive,
    x: ArrayLike,
    entries: Sequence[Entry],
    type: ArrayType,
    updates: ArrayLike,
    unique_indices: bool,
    mode: str | None,
) -> Array:
    """Scatter ``updates`` to an index of arrays of positions, numbers and Cuts.

    The Cuts have step 1. ``unique_indices`` promises that no index repeats. ``mode`` is
    the primitive's, and None means "drop". ``type`` is the type of x.
    """
    # Windows have the extents of Cuts, and extent 1 (collapsed) along other axes. Only
    # whole Cuts need no position.
    axes = [entry for entry in entries if entry is not None]
    collapsed = tuple(k for k, e in enumerate(axes) if not isinstance(e, Cut))
    indexed = tuple(
        k
        for k, e in enumerate(axes)
        if not (isinstance(e, Cut) and e.is_whole(type.shape[k]))
    )
    positions = [e.low if isinstance(e, Cut) else e for e in (axes[k] for k in indexed)]
    extents = [type.shape[k] for k in indexed]
    columns, shape = index_columns(positions, extents)
    if mode is None and not unique_indices:
        unique_indices = _all_differ(positions, extents)
    # The axes of the arrays stand at ``place`` of x[index], whose shape is ``shown``.
    # The scatter's updates, of shape ``final``, lack new axes.
    place = place_of_arrays(entries)
    others = [e for e in entries if e is None or isinstance(e, Cut)]
    shown = [1 if entry is None else entry.count for entry in others]
    shown[place:place] = shape
    new_axes_before = sum(entry is None for entry in others[:place])
    inner = [entry.count for entry in others if entry is not None]
    begin = place - new_axes_before
    final = (*inner[:begin], *shape, *inner[begin:])
    windows = tuple(k for k in range(len(final)) if not begin <= k < begin + len(shape))
    return scatter_windows(
        scatter,
        x,
        columns,
        reshape(broadcast_to(updates, tuple(shown)), final),
        Windows(window_axes=windows, collapsed_axes=collapsed, indexed_axes=indexed),
        unique_indices=unique_indices,
        mode=mode or "drop",
    )


def _all_differ(positions: Sequence[Any], extents: Sequence[int]) -> bool:
    """Return whether it is known that no two index vectors are the same.

    ``positions`` has an array of positions for each indexed axis; they broadcast.
    ``extents`` are those of the axes, from whose end negative positions count.
    """
    known = [known_value(p) if ops.is_array(p) else np.asarray(p) for p in positions]
    if any(value is None for value in known):
        return False
    if 0 in extents:
        return True  # there are no positions
    wrapped = [v % n for v, n in zip(known, extents, strict=True)]
    flat = [v.reshape(-1) for v in np.broadcast_arrays(*wrapped)]
    places = np.ravel_multi_index(flat, extents)
    return len(np.unique(places)) == len(places)


def _scattered_flat(
    scatter: Primitive,
    x: ArrayLike,
    index: Any,
    type: ArrayType,
    updates: ArrayLike,
    unique_indices: bool,
    mode: str | None,
) -> Array:
    """Scatter ``updates`` to any index, element by element, in x flattened.

    The index is applied to an array of flat positions, which gives the target of each
    element. The parameters are those of ``_scattered``.
    """
    places = apply(views.iota, shape=(type.size,), axis=0, dtype=dtypes.int64)
    # Out of bounds this reads the smallest integer, which is out of bounds too.
    reading = "fill" if mode == "drop" else mode
    places = getitem(reshape(places, type.shape), index, reading)
    count = ops.type_of_operand("at", places).size
    flat = scatter_windows(
        scatter,
        reshape(x, -1),
        reshape(places, (count, 1)),
        reshape(broadcast_to(updates, places.shape), (count,)),
        Windows(window_axes=(), collapsed_axes=(0,), indexed_axes=(0,)),
        unique_indices=unique_indices,
    )
    return reshape(flat, type.shape)


def scatter_windows(
    scatter: Primitive,
    x: ArrayLike,
    columns: Array,
    updates: Array,
    windows: Windows,
    *,
    unique_indices: bool,
    mode: str = "drop",
) -> Array:
    """Emit the equation of ``scatter``, which writes ``updates`` to windows of x.

    ``columns`` has index vectors along its last axis, and ``windows`` says which axes
    they index and which axes of ``updates`` run over windows. ``mode`` is "drop" or
    "clip".
    """
    return apply(
        scatter,
        ops.as_array(x),
        columns,
        ops.as_array(updates),
        mode=mode,
        unique_indices=unique_indices,
        **windows.params(),
    )
