"""Loops: ``while_loop``, ``fori_loop``, ``scan`` and ``map``."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from arrayfn import dtypes, tree
from arrayfn.errors import ArgumentError, DTypeError, ShapeError, user_location
from arrayfn.lax.control_flow_tracing import (
    Closed,
    check_arrays,
    check_function,
    close,
    keep_types,
    plain_type,
    renamed,
    varying_along,
)
from arrayfn.numpy import _operands as ops
from arrayfn.numpy import concatenate
from arrayfn.numpy._operands import ArrayLike
from arrayfn.primitives.control_flow_scan import scan as scan_primitive
from arrayfn.primitives.control_flow_while import while_loop as while_primitive
from arrayfn.primitives.rules import as_list
from arrayfn.tracing import ImmutableArray, apply
from arrayfn.tracing.references import Ref, adopt, discharged, held, write_back
from arrayfn.transforms import vmap
from arrayfn.transforms.arguments import described

Function = Callable[..., Any]


def while_loop(cond_fun: Function, body_fun: Function, init_val: Any) -> Any:
    """Repeat ``val = body_fun(val)`` from ``init_val``, while ``cond_fun(val)``.

    ``val`` is a pytree of arrays that keep shape and dtype. ``cond_fun`` returns a
    bool. The loop has derivatives in forward and reverse mode. Reverse mode needs a
    bounded amount of memory, because it recomputes iterations if there are many (see
    ``primitives.control_flow_tape``).

    Raises ShapeError, DTypeError or ArgumentError, naming the leaf, if ``body_fun``
    changes the types, or ``cond_fun`` does not return a scalar bool.

    >>> import numpy as np
    >>> while_loop(lambda x: x < 100, lambda x: x * 2, np.array(3))
    array(192)
    """
    check_function("while_loop", "cond_fun", cond_fun, ("val",))
    check_function("while_loop", "body_fun", body_fun, ("val",))
    return discharged(lambda refs: _while_loop(cond_fun, body_fun, init_val, refs))


def _while_loop(
    cond_fun: Function, body_fun: Function, init_val: Any, refs: Sequence[Ref]
) -> Any:
    """Emit a ``while_loop`` equation, and return the last ``val``.

    The first three parameters are those of ``while_loop``. ``refs`` are the Refs that
    the functions write to; if there are any, they become part of the carry.
    """
    if refs:
        return _while_loop_with_refs(cond_fun, body_fun, init_val, refs)
    carried = keep_types(
        "while_loop", body_fun, init_val, (), lambda closed: closed.out_tree
    )
    body = carried.closed
    types = body.program.input_types[len(body.captured) :]
    condition = close(cond_fun, (init_val,), types)
    _check_condition(condition)
    condition_program, body_program = condition.program, body.program
    (condition_type,) = condition_program.output_types
    axes = condition_type.varying
    if axes:  # members of a mesh run different numbers of iterations
        condition_program = condition_program.varying_along(axes)
        body_program = body_program.varying_along(axes)
    operands = [*condition.captured, *body.captured, *carried.leaves]
    results = apply(
        while_primitive,
        *[varying_along(x, axes) if axes else x for x in operands],
        cond_program=condition_program,
        body_program=body_program,
        cond_consts=len(condition.captured),
        body_consts=len(body.captured),
    )
    return tree.unflatten(body.out_tree, as_list(results))


def _while_loop_with_refs(
    cond_fun: Function, body_fun: Function, init_val: Any, refs: Sequence[Ref]
) -> Any:
    """Run the loop with the carry (val, values of ``refs``), then write to ``refs``.

    The first three parameters are those of ``while_loop``.
    """

    def going(carry: Any) -> Any:
        """Call ``cond_fun``, which may read Refs; ArgumentError if it writes to one."""
        value, ref_values = carry
        adopt(refs, ref_values)  # the Refs have these values while cond_fun runs
        result = cond_fun(value)
        if any(x is not y for x, y in zip(held(refs), ref_values, strict=True)):
            raise ArgumentError(
                f"while_loop: {described(cond_fun)}, the condition, writes to a Ref; "
                "write in the body",
                user_location(),
            )
        return result

    def step(carry: Any) -> Any:
        """Call ``body_fun``, and return its result and the values of the Refs."""
        value, ref_values = carry
        adopt(refs, ref_values)
        return body_fun(value), held(refs)

    result, last = _while_loop(
        renamed(cond_fun, going),
        renamed(body_fun, step),
        (init_val, held(refs)),
        refs=(),
    )
    write_back(refs, last)
    return result


def _check_condition(condition: Closed) -> None:
    """Raise an error unless the traced condition returns one scalar bool.

    The error is an ArgumentError for a structure, a ShapeError for an array of another
    rank, and a DTypeError for another dtype.
    """
    name = described(condition.function)
    types = condition.out_types
    # A single array has one leaf and no container around it.
    if condition.out_tree.num_leaves != 1 or condition.out_tree.num_nodes != 1:
        raise ArgumentError(
            f"while_loop: {name}, the condition, must give a bool, but gave a "
            "structure "
            f"{condition.out_tree}",
            user_location(),
        )
    if types[0].shape:
        raise ShapeError(
            f"while_loop: {name}, the condition, must give a scalar, but gave "
            f"{types[0]}"
            f"{condition.made_at(0)}; reduce it with .any() or .all()",
            user_location(),
        )
    if types[0].dtype != dtypes.bool_:
        raise DTypeError(
            f"while_loop: {name}, the condition, must give a bool, but gave {types[0]}"
            f"{condition.made_at(0)}; compare it with something",
            user_location(),
        )


def fori_loop(
    lower: ArrayLike,
    upper: ArrayLike,
    body_fun: Function,
    init_val: Any,
    *,
    unroll: int | bool | None = None,
) -> Any:
    """Compute ``val = body_fun(i, val)`` for i from ``lower`` to ``upper`` (exclusive).

    ``val`` is a pytree of arrays that keep their shapes and dtypes. ``lower`` and
    ``upper`` are scalars. If both are known while tracing, the loop is a ``scan``,
    which is faster in reverse mode. Otherwise it is a ``while_loop``. ``unroll`` is
    that of ``scan``, for known bounds. If the bounds are floating-point numbers, i is
    one too: ``lower``, ``lower + 1`` and so on.

    Raises DTypeError if a bound is not a real scalar, and ArgumentError for ``unroll``
    with traced bounds. Other errors are those of ``scan`` and ``while_loop``.

    >>> import numpy as np
    >>> fori_loop(0, 5, lambda i, x: x + i, np.array(0))
    array(10)
    """
    check_function("fori_loop", "body_fun", body_fun, ("i", "val"))
    for what, bound in (("lower", lower), ("upper", upper)):
        type = ops.type_of_operand(f"fori_loop: {what}", bound)
        if type.shape or type.dtype not in dtypes.INTEGERS | dtypes.FLOATS:
            raise DTypeError(
                f"fori_loop: {what} is a scalar, an integer or a real number, not "
                f"{type}",
                user_location(),
            )
    if isinstance(lower, ImmutableArray) or isinstance(upper, ImmutableArray):
        if unroll not in (None, False, 1):
            raise ArgumentError(
                "fori_loop is unrolled if both bounds are known while it is traced; "
                "leave out unroll=",
                user_location(),
            )
        return _loop_of_unknown_length(lower, upper, body_fun, init_val)
    first, last = np.asarray(lower).item(), np.asarray(upper).item()
    length = max(0, math.ceil(last - first))
    dtype, weak = dtypes.promote(
        (t.dtype, t.weak) for t in (plain_type(lower), plain_type(upper))
    )
    # i has the bounds' dtype. If both are Python numbers, i counts as one, too.
    start: Any = first if weak else np.asarray(first, dtype)

    def step(carry: Any, _: Any) -> Any:
        """Call ``body_fun`` with the carry (i, val), and count i up."""
        number, value = carry
        return (number + 1, body_fun(number, value)), None

    (_, result), _ = _scan(
        "fori_loop",
        renamed(body_fun, step),
        (start, init_val),
        None,
        length,
        unroll=1 if unroll is None else unroll,
        paths=["", *tree.paths(init_val)],  # errors need no name of i
    )
    return result


def _loop_of_unknown_length(
    lower: ArrayLike, upper: ArrayLike, body_fun: Function, init_val: Any
) -> Any:
    """Run ``fori_loop`` as a while loop over (i, val), for bounds that are traced.

    The parameters are those of ``fori_loop``. i has the dtype to which both bounds
    promote.
    """
    dtype, _ = dtypes.promote(
        (t.dtype, t.weak) for t in (plain_type(lower), plain_type(upper))
    )
    first, last = (ops.as_array(ops.convert(x, dtype)) for x in (lower, upper))

    def step(carry: Any) -> Any:
        """Call ``body_fun`` with the carry (i, val), and count i up."""
        number, value = carry
        return number + 1, body_fun(number, value)

    # carry[0] is i.
    _, result = while_loop(
        lambda carry: carry[0] < last, renamed(body_fun, step), (first, init_val)
    )
    return result


def scan(
    f: Function,
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """Compute ``carry, y = f(carry, x)`` for each x of ``xs``.

    The results are the last carry, and the ys stacked along a new axis 0. ``xs`` is a
    pytree of arrays that are sliced along axis 0. Without ``xs``, x is None, and ``f``
    is called ``length`` times. With ``reverse`` the scan starts with the last x, and
    each y is at the index of its x. ``carry`` keeps its structure, shapes and dtypes.
    ``unroll`` is the unroll factor (0 or True: all). It does not change the result.

    Raises ShapeError, DTypeError or ArgumentError if ``f`` changes the carry, or the
    lengths of ``xs`` differ.

    >>> import numpy as np
    >>> scan(lambda total, x: (total + x, total), 0.0, np.array([1.0, 2.0, 3.0]))
    (array(6.), array([0., 1., 3.]))
    """
    check_function("scan", "f", f, ("carry", "x"))
    check_arrays("scan", "xs", xs)
    return _scan("scan", f, init, xs, length, reverse, unroll)


def _scan(
    name: str,
    f: Function,
    init: Any,
    xs: Any,
    length: int | None,
    reverse: bool = False,
    unroll: int | bool = 1,
    paths: Sequence[str] | None = None,
) -> tuple[Any, Any]:
    """Run ``scan`` for a function that may write to Refs.

    ``name`` is the public function, for errors. ``paths`` name the leaves of the carry
    in errors (by default, their paths in ``init``). The other parameters are those of
    ``scan``.
    """

    def with_refs(refs: Sequence[Ref]) -> tuple[Any, Any]:
        """Run the scan with the carry (carry of ``f``, values of ``refs``).

        The last values are written to ``refs``.
        """
        if not refs:
            return _scan_alone(name, f, init, xs, length, reverse, unroll, paths)

        def step(carry: Any, x: Any) -> Any:
            """Call ``f`` once, and add the values of the Refs to its carry."""
            value, ref_values = carry
            adopt(refs, ref_values)
            value, y = _pair(f, f(value, x))
            return (value, held(refs)), y

        start = (init, held(refs))
        # The values of Refs come last in the carry, and have no path.
        leaf_paths = [
            *(tree.paths(init) if paths is None else paths),
            *[""] * len(refs),
        ]
        (last, ref_values), ys = _scan_alone(
            name, renamed(f, step), start, xs, length, reverse, unroll, leaf_paths
        )
        write_back(refs, ref_values)
        return last, ys

    # ``discharged`` calls with_refs with the Refs that f writes to.
    return discharged(with_refs)


def _scan_alone(
    name: str,
    f: Function,
    init: Any,
    xs: Any,
    length: int | None,
    reverse: bool,
    unroll: int | bool,
    paths: Sequence[str] | None,
) -> tuple[Any, Any]:
    """Emit a ``scan`` equation for a function that writes to no Ref.

    Returns the last carry and the stacked ys. The parameters are those of ``_scan``.
    """
    count = _length(xs, length)
    # False is 1, and True and 0 mean all steps. Test bools by identity: False == 0.
    steps = max(1, count) if unroll is True else int(unroll)
    if steps == 0:
        steps = 1 if unroll is False else max(1, count)
    if steps < 0:
        raise ArgumentError(
            f"{name}: unroll must be a number of steps, 0 or True for all, not "
            f"{unroll}",
            user_location(),
        )
    types = [plain_type(x) for x in tree.leaves(xs)]
    slices = [t.with_shape(t.shape[1:]).with_varying(t.varying) for t in types]

    def step(carry: Any, x: Any) -> Any:
        """Call ``f``, and check that it returns a pair."""
        return _pair(f, f(carry, x))

    carried = keep_types(
        name,
        renamed(f, step),
        init,
        (xs,),
        lambda closed: closed.out_tree.children()[0],  # the result is (carry, y)
        slices,
        paths,
    )
    body = carried.closed
    results = as_list(
        apply(
            scan_primitive,
            *body.captured,
            *carried.leaves,
            *tree.leaves(xs),
            program=body.program,
            length=count,
            reverse=bool(reverse),
            consts=len(body.captured),
            carry=len(carried.leaves),
            unroll=steps,
        )
    )
    return tree.unflatten(body.out_tree, results)


def _pair(f: Function, pair: Any) -> tuple[Any, Any]:
    """Return ``pair``, the result of ``f``, as a tuple (carry, y).

    Raises ArgumentError if it is not a tuple or list of two.
    """
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ArgumentError(
            f"scan: {described(f)} must return a pair (carry, y), but returned "
            f"{_sized(pair)}; return (carry, None) if there is no y",
            user_location(),
        )
    return pair[0], pair[1]


def _sized(value: Any) -> str:
    """Return the type of ``value`` for errors, such as "float" or "tuple of 3"."""
    name = type(value).__name__
    return f"{name} of {len(value)}" if isinstance(value, (tuple, list)) else name


def _length(xs: Any, length: int | None) -> int:
    """Return the number of steps of a scan, from the leaves of ``xs`` or ``length``.

    Raises ArgumentError if neither gives a number or ``length`` is not an integer of 0
    or more, and ShapeError if a leaf has no axis or the lengths differ.
    """
    if length is not None:
        try:
            length = operator.index(length)
        except TypeError:
            raise ArgumentError(
                f"scan: length must be an int, not {type(length).__name__}; where it "
                "depends on traced values, use while_loop or fori_loop",
                user_location(),
            ) from None
        if length < 0:
            raise ArgumentError(f"scan: length is {length}", user_location())
    lengths: dict[int, str] = {}  # a leaf of each length that occurs, for errors
    for path, x in zip(tree.paths(xs), tree.leaves(xs), strict=True):
        shape = plain_type(x).shape
        if not shape:
            raise ShapeError(
                f"scan: xs{path} is {plain_type(x)}, which has no axis to be cut "
                "along; let f close over it, or repeat it with "
                "arrayfn.numpy.broadcast_to",
                user_location(),
            )
        lengths.setdefault(shape[0], f"xs{path} is {plain_type(x)}")
    if len(lengths) > 1:
        raise ShapeError(
            "scan: the arrays of xs are cut along axis 0, so that they have one "
            f"length, but {', '.join(lengths.values())}",
            user_location(),
        )
    if not lengths:
        if length is None:
            raise ArgumentError(
                "scan: without xs the number of steps is not known; give length=",
                user_location(),
            )
        return length
    (from_xs,) = lengths  # the only key
    if length is not None and from_xs != length:
        raise ShapeError(
            f"scan: length is {length}, but {lengths[from_xs]}; leave length out",
            user_location(),
        )
    return from_xs


def map(f: Function, xs: Any, *, batch_size: int | None = None) -> Any:
    """Call ``f`` for each x of ``xs``, and stack the results along a new axis 0.

    ``xs`` is a pytree of arrays that are sliced along axis 0. With ``batch_size``,
    ``vmap`` maps that many calls at a time. This is faster and takes more memory.
    Raises ArgumentError for a ``batch_size`` below 1, ShapeError if the lengths of
    ``xs`` differ.

    >>> import numpy as np
    >>> map(lambda x: x.sum(), np.ones((3, 2)))
    array([2., 2., 2.])
    """
    check_function("map", "f", f, ("x",))
    if batch_size is None:
        # A scan with an empty carry.
        _, ys = scan(renamed(f, lambda _, x: ((), f(x))), (), xs)
        return ys
    check_arrays("map", "xs", xs)
    length = _length(xs, None)
    size = operator.index(batch_size)
    if size < 1:
        raise ArgumentError(f"map: batch_size is {size}", user_location())
    whole = length // size * size  # the number of elements in full batches
    parts: list[Any] = []
    if whole:
        blocks = tree.map(
            lambda x: x[:whole].reshape((whole // size, size, *x.shape[1:])), xs
        )
        _, ys = scan(renamed(f, lambda _, x: ((), vmap(f)(x))), (), blocks)
        parts.append(tree.map(lambda y: y.reshape((whole, *y.shape[2:])), ys))
    # The last, smaller batch; also without elements, whose results have types, too.
    if whole < length or not length:
        parts.append(vmap(f)(tree.map(lambda x: x[whole:], xs)))
    if len(parts) == 1:
        return parts[0]
    return tree.map(lambda *ys: concatenate(ys), *parts)


__all__ = ["fori_loop", "map", "scan", "while_loop"]
