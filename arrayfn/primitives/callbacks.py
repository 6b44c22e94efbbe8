"""Calls of Python functions: pure, with side effects, or for their side effects only.

The param ``callback`` is the function's name (see ``named_functions``). The function
takes arrays and returns a sequence of arrays. ``loops`` has the mapped axes of the
call, outermost first: the extent of each, and which operands have it in front. The
function is called for each member, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import DType
from arrayfn.errors import ArgumentError, ShapeError, SourceLocation, plural
from arrayfn.ir import ArrayType, Atom, Equation, walk
from arrayfn.ir.layout import Shape
from arrayfn.primitives import families
from arrayfn.primitives.base import (
    NOT_LINEAR,
    ZERO_TANGENT,
    Array,
    Atoms,
    Batched,
    Dims,
    Library,
    Primitive,
    Sample,
    not_differentiable,
)
from arrayfn.primitives.named_functions import FUNCTIONS, NamedFunction
from arrayfn.primitives.numbered import NumberedTable
from arrayfn.primitives.rules import all_mapped, as_list, mapped_axes_first
from arrayfn.records import frozen

Form = tuple[Shape, DType]
"""The shape and dtype of an array."""
Results = tuple[Form, ...]
Loops = tuple[tuple[int, tuple[bool, ...]], ...]
"""For each mapped axis, its extent and which operands have it."""


@frozen(slots=True)
class CallSite:
    """A callback in a compiled Program: the Python function, and its arrays' types."""

    callback: NamedFunction
    operands: tuple[Form, ...]
    results: Results
    loops: Loops
    location: SourceLocation | None

    def run(self, operands: Sequence[Array]) -> list[Array]:
        """Call the function on ``operands`` and return its results.

        An error of the function gets a note with the user's line of the callback.
        """
        try:
            return call(
                operands,
                callback=self.callback,
                results=self.results,
                loops=self.loops,
            )
        except Exception as error:
            location = "" if self.location is None else f", called at {self.location}"
            error.add_note(f"in the Python function {self.callback}{location}")
            raise


SITES: Final = NumberedTable[CallSite]("Python function")
"""The call sites of this process\'s compiled Programs."""


def keep_callbacks(equations: Iterable[Equation]) -> None:
    """Keep alive the Python functions that ``equations`` call.

    Equations of the Programs in their params count too.
    """
    for equation in walk(equations):
        if "callback" in equation.params:
            FUNCTIONS.keep(equation.params["callback"])


def call(
    operands: Sequence[Array], *, callback: str, results: Results, loops: Loops
) -> list[Array]:
    """Call the named Python function, once for each member of the mapped axes.

    Args:
        operands: the arrays. In front, each has the mapped axes that ``loops`` marks
            for it.
        callback: the function's name in ``FUNCTIONS``.
        results: the shape and dtype of each result, mapped axes included.
        loops: for each mapped axis, outermost first, its extent and a flag for each
            operand. Members are called one after the other.

    Returns an array for each of ``results``, the members' results stacked along axis 0.
    Raises ShapeError or ArgumentError if the function returns anything else.
    """
    if not loops:
        arrays = FUNCTIONS.find(callback).function(*operands)
        return check_results(callback, [np.asarray(x) for x in arrays], results)
    (size, mapped), *inner = loops
    member_results = tuple((shape[1:], dtype) for shape, dtype in results)
    results_of_members = [
        call(
            [x[k] if m else x for x, m in zip(operands, mapped, strict=True)],
            callback=callback,
            results=member_results,
            loops=tuple(inner),
        )
        for k in range(size)
    ]
    return [
        np.stack([arrays[position] for arrays in results_of_members])
        if size
        else np.empty(shape, dtype)
        for position, (shape, dtype) in enumerate(results)
    ]


def check_results(name: str, arrays: Sequence[Array], results: Results) -> list[Array]:
    """Return ``arrays`` as a list if they have the forms declared in ``results``.

    The Python function ``name`` returned them. Raises ArgumentError if their number
    differs, and ShapeError if a shape or dtype does.
    """
    if len(arrays) != len(results):
        raise ArgumentError(
            f"the Python function {name} gave {plural(len(arrays), 'array')}, not "
            f"{len(results)}"
        )
    for position, (x, (shape, dtype)) in enumerate(zip(arrays, results, strict=True)):
        if (x.shape, x.dtype) != (shape, dtype):
            raise ShapeError(
                f"the Python function {name} gave {_type_text(x.shape, x.dtype)} as "
                f"result {position}, which is declared as {_type_text(shape, dtype)}"
            )
    return list(arrays)


def _type_text(shape: Shape, dtype: DType) -> str:
    """Return an array type as text: ``f32[3,4]``."""
    name = dtypes.SHORT_NAMES.get(dtype, str(dtype))
    return f"{name}[{','.join(map(str, shape))}]"


def _with_mapped_axis(
    axis_size: int, inputs: Atoms, dims: Dims, loops: Loops
) -> tuple[list[Atom], Loops]:
    """Move the mapped axis of a batched call's operands to the front.

    The mapped axis has ``axis_size`` elements, and is axis ``dims[k]`` of input k
    (None: input k is not mapped). Returns the operands, and ``loops`` with the mapped
    axis added as the outermost.
    """
    operands = mapped_axes_first(inputs, dims)
    return operands, ((axis_size, tuple(dim is not None for dim in dims)), *loops)


def _with_size(size: int, results: Results) -> Results:
    """Return ``results`` with a leading axis of extent ``size`` in each shape."""
    return tuple(((size, *shape), dtype) for shape, dtype in results)


# pure_callback


def _pure_types(
    *operands: ArrayType, callback: str, results: Results, loops: Loops, method: str
) -> tuple[ArrayType, ...]:
    """Type rule: the shapes and dtypes that the user declared in ``results``.

    ``callback`` is the function's name in ``FUNCTIONS``, and ``loops`` the mapped axes
    that it is called along. ``method`` is for the batching rule.
    """
    return tuple(ArrayType(shape, dtype) for shape, dtype in results)


def _pure_reference(
    *operands: Array, callback: str, results: Results, loops: Loops, method: str
) -> tuple[Array, ...]:
    """Call the Python function on the operands."""
    return tuple(call(operands, callback=callback, results=results, loops=loops))


def _pure_batch(
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    *,
    callback: str,
    results: Results,
    loops: Loops,
    method: str,
) -> Batched:
    """Batching rule: call the function for each member or once, as ``method`` says.

    ``method`` is the user's ``vmap_method``: "sequential" calls the function for each
    member, "broadcast_all" once with every operand mapped in front, "expand_dims" once
    with an axis of extent 1 where an operand is not mapped. Raises ArgumentError for
    any other.
    """
    # A call that already loops over mapped axes loops over this axis too.
    if method == "sequential" or (loops and method):
        operands, loops = _with_mapped_axis(axis_size, inputs, dims, loops)
    elif method == "broadcast_all":
        operands = all_mapped(axis_size, inputs, dims)
    elif method == "expand_dims":
        operands = all_mapped(1, inputs, dims)
    else:
        raise ArgumentError(
            f"vmap of the Python function {callback}: say how to call it, with "
            "pure_callback(..., vmap_method='sequential') for each member in turn, or "
            "'expand_dims' or 'broadcast_all' for one call with a leading axis"
        )
    outputs = pure_callback(
        *operands,
        callback=callback,
        results=_with_size(axis_size, results),
        loops=loops,
        method=method,
    )
    return as_list(outputs), [0] * len(results)


def _turned(x: Any, y: Any) -> tuple[Any, ...]:
    """Return ``x`` reversed plus ``y``, and the sum of ``x``; samples call it."""
    return np.asarray(x)[::-1] + y, np.asarray(x).sum(dtype=np.float32)


_SAMPLE_FUNCTION = FUNCTIONS.name(_turned, "turned")


def _pure_samples() -> Iterable[Sample]:
    """Yield a call with two operands and two results, for the table tests."""
    x = families.random_array(dtypes.float32, (3, 4), 71)
    params = {
        "callback": _SAMPLE_FUNCTION,
        "results": (((3, 4), dtypes.float32), ((), dtypes.float32)),
        "loops": (),
        "method": "sequential",
    }
    yield Sample((x, np.asarray(2.0, np.float32)), params)


pure_callback = Primitive(
    name="pure_callback",
    family="callback",
    types=_pure_types,
    reference=_pure_reference,
    kernel=Library("callback"),
    jvp=not_differentiable(
        "a Python function has no derivative that could be found; give the function "
        "that calls it a rule of its own with custom_jvp or custom_vjp (one that Numba "
        "compiled, and whose source cannot be traced: adapters.numba(f, vjp=rule))"
    ),
    transpose=NOT_LINEAR,
    batch=_pure_batch,
    samples=_pure_samples,
    doc="The results of a Python function without side effects.",
)

# io_callback


def _io_batch(
    axis_size: int,
    inputs: Atoms,
    dims: Dims,
    *,
    callback: str,
    results: Results,
    loops: Loops,
    method: str,
) -> Batched:
    """Batching rule: call the function for each member, in no promised order.

    Raises ArgumentError if ``method`` is "ordered".
    """
    if method == "ordered":
        raise ArgumentError(
            f"vmap of the Python function {callback}: its calls are ordered, but the "
            "members of a batch have no order; leave out ordered=True, or use lax.map"
        )
    operands, loops = _with_mapped_axis(axis_size, inputs, dims, loops)
    mapped = _with_size(axis_size, results)
    called = io_callback(
        *operands, callback=callback, results=mapped, loops=loops, method=method
    )
    return as_list(called), [0] * len(results)


io_callback = Primitive(
    name="io_callback",
    family="callback",
    types=_pure_types,
    reference=_pure_reference,
    kernel=Library("callback"),
    jvp=not_differentiable(
        "a Python function with side effects has no derivative; give the function that "
        "calls it a rule of its own with custom_jvp, or call it on stop_gradient(x)"
    ),
    transpose=NOT_LINEAR,
    batch=_io_batch,
    samples=_pure_samples,
    doc="The results of a Python function with side effects.",
    effect=True,
)

# debug_callback


def _debug_types(
    *operands: ArrayType, callback: str, loops: Loops
) -> tuple[ArrayType, ...]:
    """Type rule: any operands, no outputs.

    ``callback`` is the function's name in ``FUNCTIONS``, and ``loops`` the mapped axes
    that it is called along.
    """
    return ()


def _debug_reference(*operands: Array, callback: str, loops: Loops) -> tuple[Any, ...]:
    """Call the Python function for its side effect; return no outputs."""
    call(operands, callback=callback, results=(), loops=loops)
    return ()


def _debug_batch(
    axis_size: int, inputs: Atoms, dims: Dims, *, callback: str, loops: Loops
) -> Batched:
    """Batching rule: call the function for each member. There are no outputs."""
    operands, loops = _with_mapped_axis(axis_size, inputs, dims, loops)
    debug_callback(*operands, callback=callback, loops=loops)
    return [], []


def _nothing(*operands: Any) -> tuple[Any, ...]:
    """Do nothing; samples of debug_callback call it."""
    return ()


_SAMPLE_EFFECT = FUNCTIONS.name(_nothing, "nothing")


def _debug_samples() -> Iterable[Sample]:
    """Yield a call of a function that does nothing, for the table tests."""
    x = families.random_array(dtypes.float32, (3, 4), 72)
    params = {"callback": _SAMPLE_EFFECT, "loops": ()}
    yield Sample((x,), params, differentiate=())


debug_callback = Primitive(
    name="debug_callback",
    family="callback",
    types=_debug_types,
    reference=_debug_reference,
    kernel=Library("callback"),
    jvp=ZERO_TANGENT,
    transpose=NOT_LINEAR,
    batch=_debug_batch,
    samples=_debug_samples,
    doc="A call of a Python function for its side effects.",
    effect=True,
)
