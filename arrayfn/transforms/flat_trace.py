"""Functions of pytrees as Programs, whose inputs and outputs are their leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arrayfn import tree
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import ArrayType, Mesh, Program
from arrayfn.records import frozen
from arrayfn.tracing import Trace, Tracer, trace
from arrayfn.tracing.frames import current_frame
from arrayfn.tracing.references import check_not_returned
from arrayfn.transforms.arguments import (
    Function,
    check_function,
    check_leaf,
    check_leaves,
    hints,
    leaf_type,
    raise_mismatch,
    short,
    shown_name,
    value_of,
    with_own_arrays,
)


@frozen
class FlatTrace:
    """A traced function: its Program, captured values and the result's structure."""

    trace: Trace
    out_tree: tree.TreeDef

    @property
    def program(self) -> Program:
        """The Program."""
        return self.trace.program


def trace_function(
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    types: Sequence[ArrayType] | None = None,
    abstract: bool = False,
    with_values: bool | Sequence[bool] = True,
    axes: Mapping[str, int] | None = None,
    constants: bool = True,
    checks: frozenset[str] = frozenset(),
    whole: bool = False,
    mesh: Mesh | None = None,
    varying: bool = True,
    platform: str = "",
    types_only: bool = False,
    fixed: Sequence[bool] = (),
) -> FlatTrace:
    """Trace ``function(*args, **kwargs)``, every leaf of which becomes an input.

    Args:
        function: the function of pytrees.
        args: its positional arguments.
        kwargs: its keyword arguments.
        types: the types of the inputs, if they are not those of the leaves; for
            example, without a mapped axis.
        abstract: whether operations that use only captured arrays are staged, too.
            Otherwise they are computed at once.
        with_values: whether the function sees the values of the leaves, or of which.
        axes: the named axes that the function is mapped along, with their extents. For
            each, the Program has one more input, the member's index.
        constants: whether captured values may be constants. If not, all are inputs.
        checks: the kinds of checks that ``jit`` was asked for.
        whole: whether captured values are constants inside another trace, too, unless
            they depend on it.
        mesh: the mesh whose axes ``axes`` are, if they are a mesh's.
        varying: whether types say along which axes of the mesh a value varies.
        platform: the backend that the Program is compiled for.
        types_only: whether the Program is never run, so that the function may use a
            ``ShapeDtypeStruct`` for an array.
        fixed: for each leaf, whether it depends on nothing that a derivative is taken
            by.
    """
    check_function("tracing", function)
    args, kwargs, leaves, structure = with_own_arrays(args, kwargs)
    check_leaves(function, args, kwargs, leaves)
    out_tree: list[tree.TreeDef] = []
    seen = [with_values] * len(leaves) if isinstance(with_values, bool) else with_values

    def flat(*tracers: Tracer) -> list[Any]:
        """Call the function on pytrees of ``tracers``; return its result's leaves.

        Puts the result's structure into ``out_tree``.
        """
        inner_args, inner_kwargs = tree.unflatten(structure, tracers)
        try:
            result = function(*inner_args, **inner_kwargs)
        except TypeError as error:
            raise_mismatch(error)
            raise
        results, result_tree = tree.flatten(result)
        for leaf in results:
            _check_result(function, leaf)
        out_tree.append(result_tree)
        return results

    traced = trace(
        flat,
        types or [leaf_type(x) for x in leaves],
        name=shown_name(function),
        hints=hints(function, args, kwargs),
        values=[
            value_of(x) if sees else None for x, sees in zip(leaves, seen, strict=True)
        ],
        abstract=abstract,
        axes=axes,
        constants=constants,
        checks=checks,
        whole=whole,
        mesh=mesh,
        varying=varying,
        platform=platform,
        types_only=types_only,
        fixed=fixed,
    )
    return FlatTrace(traced, out_tree[0])


def _check_result(function: Function, leaf: Any) -> None:
    """Raise ArgumentError unless ``leaf`` of a result is an array or a number."""
    check_not_returned(shown_name(function), leaf)
    try:
        check_leaf(leaf, "")
    except ArgumentError:
        raise ArgumentError(
            f"{shown_name(function)} returned a {type(leaf).__name__} ({short(leaf)}), "
            "not an array or number; return arrays only, and other things from outside "
            "the function",
            user_location(),
        ) from None


def inside_trace(leaves: Sequence[Any]) -> bool:
    """Whether a call with ``leaves`` belongs to a trace rather than running at once."""
    frame = current_frame()
    return frame is not None and (
        frame.abstract or any(isinstance(x, Tracer) for x in leaves)
    )
