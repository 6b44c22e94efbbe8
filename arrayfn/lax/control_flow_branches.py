"""Branches: ``cond`` and ``switch``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from arrayfn import dtypes, tree
from arrayfn.errors import ArgumentError, DTypeError, ShapeError, user_location
from arrayfn.ir import ArrayType, joined_variance
from arrayfn.ir.sharding import UNVARYING
from arrayfn.lax.control_flow_tracing import (
    Closed,
    check_arrays,
    check_function,
    close,
    renamed,
    sharing,
    varying_along,
    with_types,
)
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import ArrayLike
from arrayfn.primitives import discrete
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.control_flow_cond import cond as cond_primitive
from arrayfn.primitives.rules import as_list
from arrayfn.tracing import Tracer, apply
from arrayfn.tracing.references import Ref, discharged, held, within, write_back
from arrayfn.transforms.arguments import described

Function = Callable[..., Any]
_NOTHING: Final = object()


def cond(
    pred: ArrayLike,
    true_fun: Function,
    false_fun: Function,
    *operands: Any,
    operand: Any = _NOTHING,
) -> Any:
    """Call ``true_fun(*operands)`` if ``pred`` is true, else ``false_fun(*operands)``.

    ``pred`` is a scalar: a bool, or a real number that is true unless it is 0. Only the
    selected branch is computed, but if ``pred`` is mapped by ``vmap``, both are. Both
    functions return pytrees of the same structure, with leaves of the same shapes and
    dtypes. A single operand may be passed as ``operand=``.

    Raises ShapeError, DTypeError or ArgumentError, naming the leaf, if the branches
    differ or ``pred`` is not a scalar.

    >>> import numpy as np
    >>> cond(True, lambda x: x + 1, lambda x: x - 1, np.array(3.0))
    array(4.)
    """
    operands = _with_named("cond", operands, operand)
    names = _names(operands)
    check_function("cond", "true_fun", true_fun, names)
    check_function("cond", "false_fun", false_fun, names)
    pred_type = _scalar("cond: pred", pred)
    if pred_type.dtype == dtypes.bool_:
        index = ops.convert(pred, dtypes.int32)
    elif pred_type.dtype in dtypes.COMPLEX:
        raise DTypeError(
            f"cond: pred must be a truth value, not {pred_type}; compare it with a "
            "value",
            user_location(),
        )
    else:
        index = ops.convert(_unequal_zero(pred), dtypes.int32)
    return _choose("cond", index, (false_fun, true_fun), operands)  # 0 is false


def _with_named(name: str, operands: tuple[Any, ...], operand: Any) -> tuple[Any, ...]:
    """Return the tuple of operands, for a call with ``operands`` or ``operand=``.

    ``operand`` is ``_NOTHING`` unless the caller passed it by name. Raises
    ArgumentError, about the function ``name``, if there are operands by position, too.
    """
    if operand is _NOTHING:
        return operands
    if operands:
        raise ArgumentError(
            f"{name} takes operands by position, or one as operand=, not both",
            user_location(),
        )
    return (operand,)


def _names(operands: tuple[Any, ...]) -> list[str]:
    """Return the names of the operands for errors: "operands[0]", "operands[1]", ..."""
    return [f"operands[{k}]" for k in range(len(operands))]


def switch(
    index: ArrayLike,
    branches: Sequence[Function],
    *operands: Any,
    operand: Any = _NOTHING,
) -> Any:
    """Call ``branches[index](*operands)``; ``index``, an integer scalar, is clamped.

    An index below 0 selects the first branch, and one that is too large the last. All
    branches return pytrees of the same structure, with leaves of the same shapes and
    dtypes. A single operand may be passed as ``operand=``.

    Raises ArgumentError if there is no branch, and otherwise the errors of ``cond``.

    >>> import numpy as np
    >>> switch(1, [np.sin, np.cos, np.tan], np.array(0.0))
    array(1.)
    """
    operands = _with_named("switch", operands, operand)
    if not branches:
        raise ArgumentError("switch: there is no branch to choose", user_location())
    names = _names(operands)
    for number, branch in enumerate(branches):
        check_function("switch", f"branches[{number}]", branch, names)
    type = _scalar("switch: index", index)
    if type.dtype not in dtypes.INTEGERS:
        raise DTypeError(
            f"switch: the index is an integer, not {type}; for a truth value use cond",
            user_location(),
        )
    if len(branches) == 1:
        return branches[0](*operands)
    last = len(branches) - 1
    if dtypes.is_python_scalar(index):
        bounded: Any = min(max(int(index), 0), last)
    else:
        # A narrow index dtype, such as int8, may not be able to hold ``last``.
        bounded = apply(
            e.clamp,
            ops.scalar(0, type.dtype),
            index,
            ops.scalar(min(last, _largest_integer(type)), type.dtype),
        )
    return _choose("switch", ops.convert(bounded, dtypes.int32), branches, operands)


def _largest_integer(type: ArrayType) -> int:
    """Return the largest value of the integer dtype of ``type``."""
    sign_bits = 1 if type.dtype in dtypes.SIGNED else 0
    return (1 << (8 * type.dtype.itemsize - sign_bits)) - 1


def _unequal_zero(pred: ArrayLike) -> Any:
    """Return whether the number ``pred`` is not 0, as a Python or traced bool."""
    if dtypes.is_python_scalar(pred):
        return bool(pred)
    return apply(discrete.ne, pred, ops.scalar(0, pred.dtype))


def _scalar(what: str, value: Any) -> ArrayType:
    """Return the type of ``value``, and raise ShapeError unless it is a scalar.

    ``what`` names the value in errors.
    """
    type = ops.type_of_operand(what, value)
    if type.shape:
        raise ShapeError(
            f"{what} must be a scalar, not {type}; to choose element by element, write "
            "arrayfn.numpy.where(condition, x, y)",
            user_location(),
        )
    return type


def _choose(
    name: str, index: Any, branches: Sequence[Function], operands: Sequence[Any]
) -> Any:
    """Call ``branches[index](*operands)``, carry out writes to Refs, return the result.

    Each Ref that a branch writes to becomes an additional operand and result of all
    branches. After the choice, its last value is written to it. ``name`` is the public
    function, for errors.
    """
    check_arrays(name, "operands", tuple(operands))

    def with_refs(refs: Sequence[Ref]) -> Any:
        """Choose among branches that take and return the values of ``refs``.

        ``discharged`` calls this function again with more Refs, until it knows all Refs
        that a branch writes to.
        """
        if not refs:
            return _choose_alone(name, index, branches, operands)

        inner = [renamed(branch, within(branch, refs)) for branch in branches]
        result, last_values = _choose_alone(name, index, inner, (held(refs), *operands))
        write_back(refs, last_values)
        return result

    return discharged(with_refs)


def _choose_alone(
    name: str, index: Any, branches: Sequence[Function], operands: Sequence[Any]
) -> Any:
    """Emit a ``cond`` equation for the branch number ``index``, and return its result.

    All branches are traced, and their results are converted to common types. The
    branches write to no Ref except those that are among their operands.
    """
    closed = [close(branch, operands) for branch in branches]
    _check_structures(name, closed)
    types = _common_types(name, closed)
    values, programs = sharing(closed)
    inputs = [*values, *tree.leaves(tuple(operands))]
    axes = index.type.varying if isinstance(index, Tracer) else UNVARYING
    if axes:  # members of a mesh take different branches
        inputs = [varying_along(x, axes) for x in inputs]
        # Each member computes its own derivatives. varying_along, which all members
        # reach, sums those of values that the members share.
        programs = [p.varying_along(axes) for p in programs]
    results = apply(
        cond_primitive,
        index,
        *inputs,
        branches=tuple(with_types(p, types) for p in programs),
    )
    return tree.unflatten(closed[0].out_tree, as_list(results))


def _check_structures(name: str, closed: Sequence[Closed]) -> None:
    """Raise ArgumentError, about ``name``, if branches return different structures."""
    first = closed[0]
    for other in closed[1:]:
        if other.out_tree != first.out_tree:
            raise ArgumentError(
                f"{name}: the branches return different structures: "
                f"{described(first.function)} {first.out_tree}, "
                f"{described(other.function)} {other.out_tree}; return the same keys "
                "and lengths from all",
                user_location(),
            )


def _common_types(name: str, closed: Sequence[Closed]) -> list[ArrayType]:
    """Return the types of the result's leaves, to which all branches are converted.

    A Python number that a branch returns takes the dtype that the other branches give.
    Otherwise, leaves must have equal shapes and dtypes. Raises DTypeError or
    ShapeError, about the function ``name``, if they differ.
    """
    types: list[ArrayType] = []
    leaves = list(range(closed[0].out_tree.num_leaves))
    paths = tree.paths(tree.unflatten(closed[0].out_tree, leaves))
    for k, path in enumerate(paths):
        leaf_types = [c.out_types[k] for c in closed]  # of leaf k, from each branch
        dtype, weak = dtypes.promote((t.dtype, t.weak) for t in leaf_types)
        if len({t.shape for t in leaf_types}) > 1 or any(
            t.dtype != dtype and not t.weak for t in leaf_types
        ):
            returned = "; ".join(
                f"{described(c.function)} gives {c.out_types[k]}{c.made_at(k)}"
                for c in closed
            )
            same_shapes = len({t.shape for t in leaf_types}) == 1
            remedy = (
                f"convert with .astype({dtype.name!r})"
                if same_shapes
                else "give both one shape, with arrayfn.numpy.broadcast_to, say"
            )
            where = f" at {path}" if path else ""  # of a pytree
            raise (DTypeError if same_shapes else ShapeError)(
                f"{name}: the branches return different types{where}: {returned}; "
                f"{remedy}",
                user_location(),
            )
        varying = joined_variance(leaf_types)
        types.append(ArrayType(leaf_types[0].shape, dtype, weak=weak, varying=varying))
    return types


__all__ = ["cond", "switch"]
