"""``ufunc``: an elementwise function with NumPy's ``reduce``, ``at`` and others.

``elementwise`` has arrayfn's ufuncs. ``frompyfunc`` makes a ufunc of any function of
scalars. Some functions (add, maximum ...) have reductions of their own, and the methods
of their ufuncs call these. Other methods combine elements by calling the function: in
pairs if the order does not matter, else one after the other, in a compiled loop.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final, Generic, ParamSpec, TypeVar

import numpy as np
from typing_extensions import override

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import (
    ArgumentError,
    DTypeError,
    InPlaceError,
    OutOfBoundsError,
    ShapeError,
    plural,
    user_location,
)
from arrayfn.ir import Program
from arrayfn.ir.layout import other_axes
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import comparison
from arrayfn.numpy._operands import Array, ArrayLike, Axis, DTypeLike
from arrayfn.numpy.application import vectorize
from arrayfn.numpy.creation import arange, asarray
from arrayfn.numpy.index_bounds import known_value
from arrayfn.numpy.indexing import getitem
from arrayfn.numpy.manipulation import (
    broadcast_to,
    concatenate,
    expand_dims,
    moveaxis,
    ravel,
    reshape,
)
from arrayfn.numpy.reductions import check_where
from arrayfn.numpy.updates import IndexedUpdate
from arrayfn.pickling import pickled
from arrayfn.primitives.control_flow_scan import scan
from arrayfn.primitives.rules import as_list
from arrayfn.tracing import apply, trace

P = ParamSpec("P")
R = TypeVar("R")

UPDATES: Final = ("add", "subtract", "multiply", "max", "min")
"""The methods of ``x.at[index]`` that can compute ``ufunc.at``."""


class ufunc(Generic[P, R]):  # noqa: N801 - NumPy's name
    """An elementwise function that takes ``nin`` arrays and gives ``nout`` arrays.

    Calling it calls ``func``, or ``call`` if that is given. ``identity`` is the value
    that a reduction begins with. ``reduce``, ``accumulate`` and ``reduceat`` replace
    the methods of these names. ``at`` names the method of ``x.at[index]`` that computes
    ``ufunc.at``. ``reorderable`` says that elements may be combined in any order.

    >>> import numpy as np
    >>> import arrayfn.numpy as anp
    >>> isinstance(anp.add, ufunc), anp.add.nin, anp.add.identity
    (True, 2, 0)
    >>> anp.multiply.outer(np.arange(1, 3), np.arange(3))
    array([[0, 1, 2],
           [0, 2, 4]])
    """

    def __init__(
        self,
        func: Callable[P, R],
        /,
        nin: int,
        nout: int = 1,
        *,
        name: str | None = None,
        nargs: int | None = None,
        identity: Any = None,
        call: Callable[..., Any] | None = None,
        reduce: Callable[..., Any] | None = None,
        accumulate: Callable[..., Any] | None = None,
        at: str | None = None,
        reduceat: Callable[..., Any] | None = None,
        reorderable: bool = False,
    ) -> None:
        """Check the numbers of arrays and results; ArgumentError if they are wrong.

        ``name`` is that of ``func`` by default, and ``nargs``, if given, must be nin +
        nout. The other parameters are those of the class.
        """
        if not callable(func):
            raise ArgumentError(
                f"ufunc takes a function, not {type(func).__name__}", user_location()
            )
        for what, number in (("nin", nin), ("nout", nout)):
            if number < 1:
                raise ArgumentError(f"ufunc: {what} is {number}", user_location())
        if nargs not in (None, nin + nout):
            raise ArgumentError(
                f"ufunc: nargs is nin + nout = {nin + nout}, not {nargs}",
                user_location(),
            )
        functools.update_wrapper(self, func)
        self.__name__ = name or getattr(func, "__name__", type(func).__name__)
        self.call: Callable[P, R] = call or func
        self.nin, self.nout, self.nargs = nin, nout, nin + nout
        self.identity = identity
        self._methods = {
            "reduce": reduce,
            "accumulate": accumulate,
            "reduceat": reduceat,
        }
        self._update = at
        self._reorderable = reorderable

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Apply the function to arrays, elementwise."""
        return self.call(*args, **kwargs)

    @override
    def __repr__(self) -> str:
        """Return text such as "<ufunc add>"."""
        return f"<ufunc {self.__name__}>"

    @override
    def __reduce__(self) -> str | tuple[Any, ...]:
        """Return what pickle needs: the name of this ufunc, or its parts."""
        return pickled(self, vars(self))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind the first argument, as functions that are attributes of classes do."""
        return self if instance is None else functools.partial(self, instance)

    def reduce(
        self,
        a: ArrayLike,
        axis: Axis = 0,
        dtype: DTypeLike = None,
        out: None = None,
        keepdims: bool = False,
        initial: ArrayLike | None = None,
        where: ArrayLike = True,
    ) -> Array:
        """Combine all elements along ``axis``, from the first to the last.

        ``axis`` may be several axes (None: all) if the order of elements does not
        matter. With ``keepdims``, the axes stay with extent 1. The result has
        ``dtype``, by default that of ``a``, but sums and products of small integers
        have 64 bits. ``initial`` counts as an element before the first. Only elements
        count where ``where`` is true. Raises ShapeError for no elements, if there is
        neither an identity nor ``initial``.

        >>> import numpy as np
        >>> import arrayfn.numpy as anp
        >>> anp.add.reduce(np.ones((2, 3))), anp.subtract.reduce(np.array([9, 1, 2]))
        (array([2., 2., 2.]), array(6))
        """
        self._check_binary("reduce")
        ops.refuse_out(f"{self.__name__}.reduce", out)
        mask = None if where is True else where
        own = self._methods["reduce"]
        if own is not None:
            options = {"keepdims": keepdims, "initial": initial, "where": mask}
            return own(a, axis=axis, dtype=dtype, **options)
        name = f"{self.__name__}.reduce"
        type = ops.type_of_operand(name, a)
        axes = ops.normalize_axes(name, axis, type.ndim)
        if len(axes) > 1 and not self._reorderable:
            raise ArgumentError(
                f"{name} over the axes {axes} has no order in which elements are "
                "combined; reduce one axis after the other",
                user_location(),
            )
        shape = tuple(type.shape[k] for k in other_axes(type.ndim, axes))
        count = math.prod(type.shape[k] for k in axes)
        value = self._in_own_dtype(a, dtype)

        def rows(x: ArrayLike) -> Array:
            """Merge the reduced axes of x into the first axis."""
            return reshape(moveaxis(x, axes, tuple(range(len(axes)))), (count, *shape))

        if mask is not None:
            check_where(name, mask)
            mask = rows(broadcast_to(mask, type.shape))
        result = self._folded(name, rows(value), mask, initial)
        if not keepdims:
            return result
        extents = tuple(1 if k in axes else n for k, n in enumerate(type.shape))
        return reshape(result, extents)

    def accumulate(
        self,
        array: ArrayLike,
        axis: int = 0,
        dtype: DTypeLike = None,
        out: None = None,
    ) -> Array:
        """Combine all elements up to each position along ``axis``.

        The result has the shape of ``array``. ``dtype`` is as for ``reduce``.

        >>> import numpy as np
        >>> import arrayfn.numpy as anp
        >>> anp.subtract.accumulate(np.array([9, 1, 2]))
        array([9, 8, 6])
        """
        self._check_binary("accumulate")
        name = f"{self.__name__}.accumulate"
        ops.refuse_out(name, out)
        own = self._methods["accumulate"]
        if own is not None:
            return own(array, axis=axis, dtype=dtype)
        type = ops.type_of_operand(name, array)
        place = ops.normalize_axis(name, axis, type.ndim)
        rows = moveaxis(self._in_own_dtype(array, dtype), place, 0)
        if type.shape[place] < 2:
            return ops.same(moveaxis(rows, 0, place))

        def step(value: Array, row: Array) -> list[Array]:
            """Combine one more row; it is the carry, and a result."""
            value = self._combine(value, row)
            return [value, value]

        _, later = _scanned(name, step, rows[0], [rows[1:]])
        return moveaxis(concatenate([rows[:1], later]), 0, place)

    def reduceat(
        self,
        array: ArrayLike,
        indices: ArrayLike,
        axis: int = 0,
        dtype: DTypeLike = None,
        out: None = None,
    ) -> Array:
        """Reduce slices of ``array`` along ``axis``.

        ``indices`` is a vector. A slice begins at each of ``indices``, and ends where
        the next one begins. The last slice ends at the end of the axis. If the next
        slice does not begin later, the slice has one element. Along ``axis``, the
        result has one element for each slice. ``dtype`` is as for ``reduce``. Raises
        OutOfBoundsError for a known index outside the axis, and ShapeError for other
        ``indices``.

        >>> import numpy as np
        >>> import arrayfn.numpy as anp
        >>> anp.add.reduceat(np.arange(8), np.array([0, 4, 1, 5]))
        array([ 6,  4, 10, 18])
        """
        self._check_binary("reduceat")
        name = f"{self.__name__}.reduceat"
        ops.refuse_out(name, out)
        own = self._methods["reduceat"]
        if own is not None:
            return own(array, indices, axis=axis, dtype=dtype)
        type = ops.type_of_operand(name, array)
        place = ops.normalize_axis(name, axis, type.ndim)
        extent = type.shape[place]
        begin = asarray(indices)
        if begin.ndim != 1 or begin.dtype not in dtypes.INTEGERS:
            raise ShapeError(
                f"{name}: indices are a vector of integers, not "
                f"{ops.type_of_operand(name, begin)}",
                user_location(),
            )
        begin = ops.convert(begin, dtypes.int64)
        # ``lengths`` are those of the slices, and ``longest`` bounds them.
        known = known_value(begin)
        if known is None:
            end = concatenate([begin[1:], ops.full(extent, (1,), dtypes.int64)])
            lengths = comparison.where(comparison.less(begin, end), end - begin, 1)
            longest = extent
        else:
            for outside in known[(known < 0) | (known >= extent)]:
                raise OutOfBoundsError(
                    f"{name}: index {outside} is out of bounds for axis {place} with "
                    f"size {extent}",
                    user_location(),
                )
            lengths = np.maximum(np.diff(known, append=extent), 1)
            longest = int(lengths.max(initial=1))
        # Sums of small integers have 64 bits. Take the dtype from ``reduce``.
        total = None if self._methods["reduce"] is None else self.reduce(array, place)
        wanted = dtype if dtype is not None or total is None else total.dtype
        rows = moveaxis(self._in_own_dtype(array, wanted), place, 0)
        spread = (-1, *(1,) * (type.ndim - 1))
        lengths = reshape(lengths, spread)

        def step(value: Array, distance: Array, *fixed: Array) -> list[Array]:
            """Combine each slice with its row at ``distance`` from the beginning.

            A slice that is not longer than ``distance`` keeps its value. ``fixed`` is
            not used.
            """
            row = getitem(rows, begin + distance, "clip")
            more = comparison.less(distance, lengths)
            return [comparison.where(more, self._combine(value, row), value)]

        first = getitem(rows, begin, "clip")
        if longest > 1:
            (first,) = _scanned(name, step, first, [arange(1, longest)])
        return moveaxis(first, 0, place)

    def at(
        self,
        a: ArrayLike,
        indices: Any,
        b: ArrayLike | None = None,
        /,
        *,
        inplace: bool = True,
    ) -> Array:
        """Apply the function to ``a`` at ``indices``.

        The function is applied once for each occurrence of an index. A function of two
        arrays combines these elements with those of ``b``, one after the other. Arrays
        are not changed: write ``inplace=False``, and use the result. Otherwise
        InPlaceError is raised.

        >>> import numpy as np
        >>> import arrayfn.numpy as anp
        >>> anp.add.at(np.zeros(3), np.array([0, 0, 2]), 1.0, inplace=False)
        array([2., 0., 1.])
        """
        name = f"{self.__name__}.at"
        if inplace:
            raise InPlaceError(
                f"{name} would change its argument; write "
                f"x = arrayfn.numpy.{name}(x, indices, ..., inplace=False)",
                user_location(),
            )
        if self.nout != 1 or self.nin > 2 or (self.nin == 2) != (b is not None):
            raise ArgumentError(
                f"{name}: a function of {self.nin} arrays with {self.nout} results "
                f"is {'not ' if b is None else ''}given a second operand",
                user_location(),
            )
        if b is None:
            return IndexedUpdate(a, indices).apply(self.call)  # type: ignore[arg-type]
        if self._update is not None:
            return getattr(IndexedUpdate(a, indices), self._update)(b)
        return self._one_by_one(name, ops.as_array(ops.same(a)), indices, b)

    def outer(self, a: ArrayLike, b: ArrayLike, /) -> R:
        """Apply the function to each pair of elements of ``a`` and b.

        The result has the axes of ``a``, then those of ``b``. Raises ArgumentError
        unless the function takes two arrays.

        >>> import numpy as np
        >>> import arrayfn.numpy as anp
        >>> anp.add.outer(np.array([0, 10]), np.arange(3))
        array([[ 0,  1,  2],
               [10, 11, 12]])
        """
        if self.nin != 2:
            raise ArgumentError(
                f"{self.__name__}.outer: it takes {plural(self.nin, 'array')}; outer "
                "is of functions of two",
                user_location(),
            )
        first, second = (
            ops.type_of_operand(f"{self.__name__}.outer", x).ndim for x in (a, b)
        )
        spread = tuple(range(first, first + second))
        function: Callable[..., R] = self.call
        return function(expand_dims(a, spread) if spread else a, b)

    # How elements are combined.

    def _combine(self, x: Array, y: Array) -> Array:
        """Call the function with x and y, and return its result as an array."""
        function: Callable[..., Any] = self.call
        return ops.as_array(function(x, y))

    def _check_binary(self, method: str) -> None:
        """Raise ArgumentError unless this function takes two arrays and gives one.

        ``method`` is the method that needs this, for the error.
        """
        if (self.nin, self.nout) != (2, 1):
            raise ArgumentError(
                f"{self.__name__}.{method}: it takes {plural(self.nin, 'array')} and "
                f"gives {self.nout}; {method} is of functions of two that give one",
                user_location(),
            )

    def _in_own_dtype(self, a: ArrayLike, dtype: DTypeLike) -> Array:
        """Convert ``a`` to a dtype that the function keeps, to combine results further.

        It is ``dtype``, by default that of ``a``, if the function of two such arrays
        has the same dtype. Otherwise, the dtype of this result is tried. Raises
        DTypeError if neither is kept, for example for comparisons of numbers.
        """
        own_dtype = ops.type_of_operand(self.__name__, a).dtype
        wanted = own_dtype if dtype is None else dtypes.canonical(dtype)
        for _ in range(2):
            result_dtype = self._result_dtype(wanted)
            if result_dtype == wanted:
                return ops.as_array(ops.convert(a, wanted))
            if result_dtype == dtypes.bool_ and self.identity is None:
                break  # a comparison, whose results it cannot compare again
            wanted = result_dtype
        raise DTypeError(
            f"{self.__name__} of two {own_dtype} gives "
            f"{self._result_dtype(own_dtype)}, which it cannot combine further; give "
            "dtype=, or convert the array",
            user_location(),
        )

    def _result_dtype(self, dtype: DType) -> DType:
        """Return the dtype of the function's result for two operands of ``dtype``."""
        one = ops.full(1, (), dtype)
        return ops.type_of_operand(self.__name__, self._combine(one, one)).dtype

    def _folded(
        self, name: str, rows: Array, mask: Array | None, initial: ArrayLike | None
    ) -> Array:
        """Combine the rows where ``mask`` is true, from the first to the last.

        The reduction begins with ``initial``, by default with the identity or the first
        row. If the order does not matter, rows are combined in pairs, else in a loop.
        Raises ShapeError, about the function ``name``, if there may be no rows, and
        neither ``initial`` nor an identity.
        """
        start = self.identity if initial is None else initial
        count, *shape = rows.shape
        if start is None and (mask is not None or not count):
            why = "no elements" if mask is None else "elements left out by where"
            raise ShapeError(
                f"{name} of {why}: it has no identity to begin with; give initial=",
                user_location(),
            )
        if start is not None:
            start = broadcast_to(ops.convert(asarray(start), rows.dtype), tuple(shape))
        if mask is not None and self.identity is not None:
            # Replace masked elements by the identity, which changes nothing.
            identity = ops.full(self.identity, tuple(shape), rows.dtype)
            rows, mask = comparison.where(mask, rows, identity), None
        if self._reorderable and mask is None and count:
            return self._in_pairs(rows, None if initial is None else start)
        if not count:
            return ops.same(start)
        # Begin with the first row rather than with the identity.
        if start is None or (initial is None and mask is None):
            start, rows = rows[0], rows[1:]
        if not rows.shape[0]:
            return ops.same(start)

        def step(value: Array, row: Array, *chosen: Array) -> list[Array]:
            """Combine one more row, where its mask (if any) is true."""
            new = self._combine(value, row)
            return [comparison.where(chosen[0], new, value) if chosen else new]

        xs = [rows] if mask is None else [rows, mask]
        (result,) = _scanned(name, step, ops.as_array(start), xs)
        return result

    def _in_pairs(self, rows: Array, start: Array | None) -> Array:
        """Combine the rows in pairs until one is left, then ``start`` with it.

        Half of the rows is combined with the other half, in about log2(n) steps.
        """
        while rows.shape[0] > 1:
            half, odd = divmod(rows.shape[0], 2)
            pairs = self._combine(rows[:half], rows[half : 2 * half])
            rows = concatenate([pairs, rows[2 * half :]]) if odd else pairs
        return rows[0] if start is None else self._combine(start, rows[0])

    def _one_by_one(self, name: str, a: Array, indices: Any, b: ArrayLike) -> Array:
        """Combine the elements of ``a`` at ``indices`` with ``b``, one after the other.

        So each occurrence of a repeated index counts. Errors call the function
        ``name``.
        """
        size = math.prod(a.shape)
        # Index an array of flat positions, to turn ``indices`` into flat positions.
        numbers = reshape(arange(size), a.shape)
        places = asarray(getitem(numbers, indices))
        others = ravel(broadcast_to(asarray(b), places.shape))
        if not places.size:
            return ops.same(a)

        def step(flat: Array, place: Array, other: Array) -> list[Array]:
            """Combine the element at ``place`` with ``other``."""
            new = ops.convert(self._combine(flat[place], other), flat.dtype)
            return [IndexedUpdate(flat, place).set(new)]

        (flat,) = _scanned(name, step, ravel(a), [ravel(places), others])
        return reshape(flat, a.shape)


def _scanned(
    name: str, step: Callable[..., list[Array]], init: Array, xs: list[Array]
) -> tuple[Any, ...]:
    """Emit a scan of ``step`` over the rows of ``xs``, with one carry.

    ``step(carry, *rows)`` returns a list of the next carry and of further results. The
    first carry is ``init``. Returns the last carry, and the further results, stacked.
    Errors call the function ``name``.
    """
    types = [ops.type_of_operand(name, init).plain()]
    for x in xs:
        type = ops.type_of_operand(name, x).plain()
        types.append(type.with_shape(type.shape[1:]))
    body = trace(step, types, name="step", constants=False)
    program, captured = body.program, len(body.captured)
    # The primitive takes the captured values first; the trace has them last.
    inputs = program.inputs
    arranged = Program(
        program.name,
        (*inputs[len(types) :], *inputs[: len(types)]),
        program.equations,
        program.outputs,
    )
    return tuple(
        as_list(
            apply(
                scan,
                *body.captured,
                init,
                *xs,
                program=arranged,
                consts=captured,
                carry=1,
                length=xs[0].shape[0],
                reverse=False,
                unroll=1,
            )
        )
    )


def frompyfunc(
    func: Callable[..., Any], /, nin: int, nout: int, *, identity: Any = None
) -> ufunc[..., Any]:
    """Return the elementwise function that maps ``func`` over arrays.

    ``func`` takes ``nin`` scalars. It is traced, and gives ``nout`` scalars. Results
    have the dtypes that ``func`` computes. NumPy would return arrays of objects.
    ``identity`` begins a reduction. The function raises ArgumentError for other numbers
    of arrays or results.

    >>> import numpy as np
    >>> f = frompyfunc(lambda x, y: x * 2 + y, 2, 1)
    >>> f(np.arange(3), 1), f.reduce(np.array([1, 2, 3]))
    (array([1, 3, 5]), array(11))
    """
    mapped = vectorize(func)

    def call(*args: ArrayLike) -> Any:
        """Call the mapped function, and check the numbers of arrays and results."""
        if len(args) != nin:
            raise ArgumentError(
                f"{mapped.__name__} takes {plural(nin, 'array')}, but was given "
                f"{len(args)}",
                user_location(),
            )
        results = mapped(*args)
        count = len(results) if isinstance(results, (tuple, list)) else 1
        if count != nout:
            raise ArgumentError(
                f"{mapped.__name__} gave {plural(count, 'result')}, not nout={nout}",
                user_location(),
            )
        return results[0] if nout == 1 and isinstance(results, tuple) else results

    return ufunc(func, nin, nout, identity=identity, call=call)
