"""A lint of gradients: finds code whose derivative is NaN where its value is finite.

It recognises patterns in a Program. ``where`` computes both branches and multiplies the
derivative of the unselected one by 0; if that derivative is infinite, the product is
NaN. The derivative of the square root of a sum of squares is 0 / 0 at 0, as that of
``arctan2`` is. Those of ``arccos`` and ``arcsin`` are infinite at the ends of their
domain. Eigenvectors and singular vectors of equal values have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn import dtypes
from arrayfn.errors import SourceLocation, readable_file
from arrayfn.ir import Atom, Equation, Literal, Program, Var, entry_of
from arrayfn.passes.inline_calls import inline_calls
from arrayfn.primitives.base import View, primitive_of
from arrayfn.records import frozen
from arrayfn.transforms import make_program
from arrayfn.transforms.dce import dce

SINGULAR: Final = {
    "div": 1,
    "reciprocal": 0,
    "sqrt": 0,
    "rsqrt": 0,
    "cbrt": 0,
    "pow": 0,
    "log": 0,
    "log2": 0,
    "log10": 0,
    "log1p": 0,
    "asin": 0,
    "acos": 0,
    "acosh": 0,
    "atanh": 0,
    "erfinv": 0,
    "lgamma": 0,
    "digamma": 0,
}
"""Primitives with singular derivatives, and the operands that cause them."""

_VECTORS: Final = frozenset(("eigh", "eig", "svd"))  # equal values leave them open
_EDGES: Final = {"acos": "arccos", "asin": "arcsin"}
_AT_ONE: Final = frozenset(("acos", "asin", "acosh", "atanh", "erfinv"))
"""Primitives with singular derivatives at 1, which the results of ``_POSITIVE`` reach.
"""
_POSITIVE: Final = frozenset(("exp", "exp2", "logistic"))
_GUARDS: Final = frozenset(("select", "max", "min", "clamp"))
_SUMS: Final = frozenset(("add", "reduce_sum", "convert", "real"))


@frozen
class Hazard:
    """A line whose gradient can be NaN, and what to write instead."""

    location: SourceLocation | None
    message: str

    @override
    def __str__(self) -> str:
        """Return the message after its place, ``file:line``."""
        at = self.location
        where = f"{readable_file(at.file)}:{at.line}: " if at else ""
        return where + self.message


def lint(function: Callable[..., Any]) -> Callable[..., tuple[Hazard, ...]]:
    """Return a function that lists the places where a gradient can be NaN.

    The function takes the same arguments. Arguments may be arrays or
    ``ShapeDtypeStruct``. Their values are not used. The list has possible hazards:
    ``lint`` does not know whether an argument causes them. To check given arguments,
    use ``jit(grad(f), checks="nan")``.

    >>> import numpy as np
    >>> import arrayfn.numpy as anp
    >>> for hazard in lint(lambda x: anp.where(x > 0, anp.sqrt(x), 0.0))(np.ones(3)):
    ...     print(hazard)  # doctest: +ELLIPSIS
    <doctest ...>:1: the derivative of sqrt is computed where where() does not choose...
    """

    def listed(*args: Any, **kwargs: Any) -> tuple[Hazard, ...]:
        """Trace the function on the arguments' types, and return its hazards."""
        program = inline_calls(make_program(function)(*args, **kwargs))
        return tuple(dict.fromkeys(hazards(dce(program))))

    return listed


def hazards(program: Program) -> Iterator[Hazard]:
    """Yield the hazards of a Program without calls, in the order of its equations.

    Programs of branches and loops are searched too.
    """
    definitions = program.definitions()
    varies = _varying(program)
    for equation in program.equations:
        for inner in equation.subprograms():
            yield from hazards(inner)
        if equation.primitive.name == "select":
            for singular in _unguarded(equation.inputs[1:], definitions, varies):
                name = singular.primitive.name
                yield Hazard(
                    singular.source,
                    f"the derivative of {name} is computed where where() does not "
                    f"choose it ({equation.source}), and is NaN or infinite there if "
                    f"{name}'s is: guard its operand, arrayfn.numpy.where(ok, {name}("
                    "arrayfn.numpy.where(ok, x, 1)), y)",
                )
        yield from _edges(equation, definitions, varies)
        yield from _undetermined(program, equation, varies)
        is_sqrt = equation.primitive.name == "sqrt"
        if is_sqrt and _is_squares(equation.inputs[0], definitions):
            yield Hazard(
                equation.source,
                "the derivative of the square root of a sum of squares is NaN where "
                "that is 0 (of a norm at the origin, of std at equal values): write "
                "arrayfn.numpy.where(s > 0, sqrt(arrayfn.numpy.where(s > 0, s, 1)), "
                "0), or add a small number to s",
            )


def _edges(
    equation: Equation, definitions: dict[Var, Equation], varies: set[Atom]
) -> Iterator[Hazard]:
    """Yield a hazard if ``equation`` is arccos, arcsin or arctan2 without a guard.

    Their derivatives are infinite or NaN at some points. ``definitions`` are those of
    the Program, and ``varies`` the values that depend on its inputs.
    """
    name = equation.primitive.name
    varying = [a for a in equation.inputs if a in varies]
    if not varying or any(_is_guarded(a, name, definitions) for a in equation.inputs):
        return
    if name in _EDGES:
        word = f"arrayfn.numpy.{_EDGES[name]}"
        yield Hazard(
            equation.source,
            f"the derivative of {_EDGES[name]} is infinite at 1 and -1, which "
            "rounding reaches (in a product of unit vectors, say): write "
            f"{word}(arrayfn.numpy.clip(x, -1 + eps, 1 - eps)), or arctan2",
        )
    if name == "atan2":
        yield Hazard(
            equation.source,
            "the derivative of arctan2(y, x) is NaN where both are 0: write "
            "arrayfn.numpy.arctan2(y, arrayfn.numpy.where((x == 0) & (y == 0), 1, x))",
        )


def _undetermined(
    program: Program, equation: Equation, varies: set[Atom]
) -> Iterator[Hazard]:
    """Yield a hazard if ``equation`` gives eigenvectors or singular vectors.

    They are no hazard if nothing uses them.
    """
    name = equation.primitive.name
    if name not in _VECTORS or equation.inputs[0] not in varies:
        return
    matrix = equation.inputs[0].type
    vectors = {v for v in equation.outputs if v.type.ndim == matrix.ndim}
    used = {a for eq in program.equations for a in eq.inputs} | {*program.outputs}
    if vectors & used:
        kind = "singular values" if name == "svd" else "eigenvalues"
        yield Hazard(
            equation.source,
            f"the derivative of the vectors of {name} is NaN where two {kind} are "
            f"equal, which leave them undetermined: use only the {kind}, a function "
            "of the matrix itself (solve, matrix_power), or make them distinct",
        )


def _varying(program: Program) -> set[Atom]:
    """Return the inexact values that depend on an input of inexact dtype."""
    varies: set[Atom] = {v for v in program.inputs if v.type.dtype in dtypes.INEXACT}
    for equation in program.equations:
        if any(a in varies for a in equation.inputs):
            varies.update(v for v in equation.outputs if v.type.dtype in dtypes.INEXACT)
    return varies


def _unguarded(
    branches: Sequence[Atom], definitions: dict[Var, Equation], varies: set[Atom]
) -> Iterator[Equation]:
    """Yield the singular equations that ``branches`` of a select depend on.

    These are equations of ``SINGULAR`` whose critical operand varies and has no guard.
    The search goes back through elementwise equations and views, up to other selects.
    """
    seen: set[Atom] = set()
    waiting = list(branches)
    while waiting:
        atom = waiting.pop()
        if atom in seen or not isinstance(atom, Var) or atom not in definitions:
            continue
        seen.add(atom)
        equation = definitions[atom]
        primitive = primitive_of(equation)
        if primitive.name == "select":
            continue  # ``hazards`` searches its branches
        number = SINGULAR.get(primitive.name)
        if number is not None and atom in varies:
            operand = equation.inputs[number]
            if operand in varies and not _is_guarded(
                operand, primitive.name, definitions
            ):
                yield equation
        if primitive.family == "elementwise" or isinstance(primitive.kernel, View):
            waiting += equation.inputs


def _is_guarded(atom: Atom, function: str, definitions: dict[Var, Equation]) -> bool:
    """Whether the operation that makes an operand keeps it off singularities.

    ``function`` is the primitive with the operand ``atom``. Such operations are those
    in ``_GUARDS``. If the singularity is not at 1, so are those in ``_POSITIVE``, and
    adding a positive constant. Views, conversions and negations are looked through.
    """
    while isinstance(atom, Var) and atom in definitions:
        equation = definitions[atom]
        primitive = primitive_of(equation)
        if primitive.name in _GUARDS:
            return True
        if primitive.name in _POSITIVE:
            return function not in _AT_ONE
        if primitive.name == "add":  # a small number, added to a nonnegative value
            return function not in _AT_ONE and any(
                isinstance(a, Literal) and np.real(a.value) > 0 for a in equation.inputs
            )
        if not isinstance(primitive.kernel, View) and primitive.name not in (
            "convert",
            "neg",
        ):
            return False
        atom = equation.inputs[0]
    return False


def _is_squares(atom: Atom, definitions: dict[Var, Equation]) -> bool:
    """Whether a value is a sum or a mean of squares ``x * x`` or ``x * conj(x)``."""
    if not isinstance(atom, Var) or atom not in definitions:
        return False
    equation = definitions[atom]
    primitive = primitive_of(equation)
    if primitive.name == "square":
        return True
    if primitive.name == "mul":
        one, other = equation.inputs
        definition = entry_of(other, definitions)
        if definition is not None and definition.primitive.name == "conj":
            other = definition.inputs[0]
        return one is other
    if primitive.name == "div" and isinstance(equation.inputs[1], Literal):
        return _is_squares(equation.inputs[0], definitions)  # a mean
    if primitive.name in _SUMS or isinstance(primitive.kernel, View):
        return all(_is_squares(a, definitions) for a in equation.inputs)
    return False
