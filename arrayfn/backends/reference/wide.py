"""Programs in double precision: what a Program means before anything is rounded.

``widened`` gives the same Program with float64 for every float and complex128 for every
complex number, in the Programs that its equations hold too. Literals keep the value
that they have in their own dtype. Sums, cumulative sums and contractions are those of
``exact``. What is about the bits of a dtype (a bitcast, the next number, a Python
function) is done in that dtype, and widened.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np

from arrayfn import dtypes
from arrayfn.backends.reference import exact
from arrayfn.dtypes import DType
from arrayfn.ir import ArrayType, Atom, Equation, Literal, Program, Var
from arrayfn.primitives.base import Primitive, primitive_of
from arrayfn.primitives.control_flow import limited_while
from arrayfn.primitives.rules import as_list

Array = np.ndarray[Any, Any]


class EquationHooks(Protocol):
    """Methods that ``widened`` calls for each equation that is interpreted.

    They see the operands and results of the equation, and may replace them.
    """

    def operands(self, equation: Equation, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the operands that the equation gets in place of ``arrays``."""
        ...

    def results(
        self, equation: Equation, operands: Sequence[Array], arrays: list[Array]
    ) -> list[Array]:
        """Return the results of the equation in place of ``arrays``.

        ``operands`` are those that the equation got.
        """
        ...

    def limit(self, equation: Equation) -> float:
        """Return how many iterations the ``while_loop`` ``equation`` may run."""
        ...

    def iterated(self, equation: Equation, count: int) -> None:
        """Note that the ``while_loop`` ``equation`` has run ``count`` iterations."""
        ...


EXACT: Final[dict[str, Callable[..., Any]]] = {
    "reduce_sum": exact.reduce_sum,
    "cumsum": exact.cumsum,
    "dot_general": exact.dot_general,
}
OF_A_DTYPE: Final = frozenset(
    {"bitcast", "nextafter", "pure_callback", "io_callback", "debug_callback"}
)


def wide_dtype(dtype: DType) -> DType:
    """Return float64 for floats, complex128 for complex dtypes, else ``dtype``."""
    if dtype in dtypes.FLOATS:
        return dtypes.float64
    return dtypes.complex128 if dtype in dtypes.COMPLEX else dtype


def wide_array(x: Any, dtype: DType) -> Array:
    """Round ``x`` to ``dtype``, and return it in the wide dtype of ``dtype``."""
    with np.errstate(all="ignore"):
        return np.asarray(np.asarray(x).astype(dtype)).astype(wide_dtype(dtype))


def widened(program: Program, hooks: EquationHooks | None = None) -> Program:
    """Return ``program`` in double precision, also the Programs in its params.

    Literals and constants keep the values that they have in their own dtype. Sums and
    contractions are exact until they are rounded. ``hooks``, if given, are called for
    each equation when the result is interpreted.
    """
    known: dict[Var, Var] = {}  # the wide Var of each Var

    def var(v: Var) -> Var:
        """Return the wide Var that stands for ``v``; the first call makes it."""
        if v not in known:
            known[v] = Var(_wide_type(v.type), v.hint)
        return known[v]

    def atom(a: Atom) -> Atom:
        """Return the wide Var or Literal that stands for ``a``."""
        if isinstance(a, Var):
            return var(a)
        dtype = a.type.dtype
        return Literal(wide_array(a.value, dtype).item(), wide_dtype(dtype))

    equations: list[Equation] = []
    for equation in program.equations:
        params = equation.params
        if equation.primitive.name not in OF_A_DTYPE:  # these compute in their dtype
            params = {k: _wide_param(v, hooks) for k, v in params.items()}
        equations.append(
            Equation(
                _row(equation, hooks),
                tuple(atom(a) for a in equation.inputs),
                params,
                tuple(var(v) for v in equation.outputs),
                equation.source,
            )
        )
    return Program(
        program.name,
        tuple(var(v) for v in program.inputs),
        tuple(equations),
        tuple(atom(a) for a in program.outputs),
        tuple(var(v) for v in program.constants),
        tuple(wide_array(x, v.type.dtype) for v, x in program.constant_pairs()),
    )


def _wide_type(type: ArrayType) -> ArrayType:
    """Return ``type`` with its dtype widened."""
    return dataclasses.replace(type, dtype=wide_dtype(type.dtype))


def _wide_param(value: Any, hooks: EquationHooks | None) -> Any:
    """Widen a param of an equation: Programs and dtypes in it become wide."""
    if isinstance(value, Program):
        return widened(value, hooks)
    if isinstance(value, np.dtype):
        return wide_dtype(value)
    if isinstance(value, tuple):
        return tuple(_wide_param(v, hooks) for v in value)
    return value


def _row(equation: Equation, hooks: EquationHooks | None) -> Primitive:
    """Return the equation's primitive, with a reference that computes on wide arrays.

    For a primitive of ``EXACT`` that is the exact function; one of ``OF_A_DTYPE``
    computes in the dtypes of the equation, and its results are widened. ``hooks`` are
    called around the reference. Other primitives without hooks stay as they are.
    """
    primitive = primitive_of(equation)
    narrow = primitive.name in OF_A_DTYPE
    if primitive.name not in EXACT and not narrow and hooks is None:
        return primitive
    reference = EXACT.get(primitive.name, primitive.reference)
    input_dtypes = [a.type.dtype for a in equation.inputs]
    types = tuple(_wide_type(v.type) for v in equation.outputs)

    def compute(*operands: Array, **params: Any) -> Any:
        """Compute the equation's results in wide dtypes, and call the hooks.

        If ``narrow``, the operands are converted to ``input_dtypes``, the equation's
        own, before that. ``types`` are the wide types of the results.
        """
        if hooks is not None:
            operands = tuple(hooks.operands(equation, operands))
        if hooks is not None and primitive.name == "while_loop":
            limit = hooks.limit(equation)
            results, count = limited_while(*operands, limit=limit, **params)
            hooks.iterated(equation, count)
            return results
        converted: Sequence[Array] = operands
        if narrow:
            converted = [
                x.astype(d) for x, d in zip(operands, input_dtypes, strict=True)
            ]
        results = reference(*converted, **params)
        arrays = [
            np.asarray(x).astype(t.dtype)
            for x, t in zip(as_list(results), types, strict=True)
        ]
        if hooks is None:
            return arrays
        return hooks.results(equation, operands, arrays)

    return dataclasses.replace(
        primitive, reference=compute, types=lambda *_, **__: types
    )
