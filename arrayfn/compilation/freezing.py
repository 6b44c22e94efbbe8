"""Freezes a Program: captured arrays are computed with, and folded into weights.

``frozen`` computes every equation that depends on captured arrays alone, by the NumPy
references, so that the results are captured in place of its operands. The recipe
``"scales"`` moves factors and terms of a product's output features, which are such
arrays, into its weights: batch normalisation of trained layers becomes one addition.
That changes how results are rounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from arrayfn import dtypes
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import Atom, Equation, Literal, Program, Var
from arrayfn.ir.builder import ProgramBuilder, rename
from arrayfn.passes.inline_calls import inline_calls
from arrayfn.primitives import contraction, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import View, has_effect, primitive_of
from arrayfn.primitives.convolution_forms import INNER, OUTER
from arrayfn.primitives.padded_convolution import padded_convolution

Array = np.ndarray[Any, Any]
RECIPES: Final = ("scales",)
_STEPS: Final = ("mul", "div", "add", "sub")


@dataclass(frozen=True)
class Frozen:
    """A Program whose captured arrays are folded, and a line on each of them."""

    program: Program
    notes: tuple[str, ...]


def check_recipes(recipes: Sequence[str]) -> None:
    """Raise ArgumentError for a recipe that is not among ``RECIPES``."""
    for name in recipes:
        if name not in RECIPES:
            raise ArgumentError(
                f"freeze has no recipe {name!r}; there is "
                f"{', '.join(map(repr, RECIPES))}",
                user_location(),
            )


def frozen(
    program: Program, recipes: tuple[str, ...], keep: Callable[[Equation], bool]
) -> Frozen:
    """``program`` with what follows from captured arrays computed.

    Calls that ``keep`` accepts, for which there is a kernel, stay calls.
    """
    check_recipes(recipes)
    return _Freezer(inline_calls(program, keep), recipes).run()


class _Freezer:
    """The folding of one Program's captured arrays.

    Attributes:
        values: the arrays that are known.
        captured: the captured arrays, and the values computed of them.
        made: the equation that makes each value.
        uses: how often each value is read; outputs count.
        notes: what has been done.
    """

    def __init__(self, program: Program, recipes: tuple[str, ...]) -> None:
        self.program = program
        self.recipes = recipes
        pairs = zip(program.constants, program.constant_values, strict=True)
        self.values: dict[Var, Array] = {var: np.asarray(x) for var, x in pairs}
        self.captured = set(self.values)
        self.made: dict[Var, Equation] = {}
        self.uses: Counter[Atom] = Counter(program.outputs)
        self.notes: list[str] = []

    def run(self) -> Frozen:
        """Compute what is known, fold scales into weights, and build what is left."""
        program = self.program
        for equation in program.equations:
            self.uses.update(equation.inputs)
            self.made.update(dict.fromkeys(equation.outputs, equation))
            self.compute(equation)
        left = [
            equation
            for equation in program.equations
            if not all(v in self.values for v in equation.outputs)
        ]
        chains = self.chains(left) if "scales" in self.recipes else {}
        inside = {q for chain in chains.values() for q in chain[:-1]}
        builder = ProgramBuilder(program.name)
        environment: dict[Var, Atom] = dict(
            zip(program.inputs, builder.inputs_of(program), strict=True)
        )
        with builder:
            for equation in left:
                if equation in inside:
                    continue
                read = chains[equation][0].inputs[:1] if equation in chains else ()
                for atom in read or equation.inputs:
                    self.capture(atom, builder, environment)
                if equation in chains:
                    result = self.folded(chains[equation], builder, environment)
                    environment[equation.outputs[0]] = result
                else:
                    builder.replay(equation, environment)
            for atom in program.outputs:
                self.capture(atom, builder, environment)
        outputs = [rename(atom, environment) for atom in program.outputs]
        return Frozen(builder.build(outputs), tuple(self.notes))

    def compute(self, equation: Equation) -> None:
        """Compute ``equation`` if its operands are known."""
        given = [a for a in equation.inputs if isinstance(a, Var)]
        primitive = primitive_of(equation)
        known = all(a in self.values for a in given)
        if not known or has_effect(equation) or primitive.is_collective:
            return
        if any(a in self.captured for a in given):
            self.captured.update(equation.outputs)
        arrays = [self.value(a) for a in equation.inputs]
        with np.errstate(all="ignore"):
            result = primitive.reference(*arrays, **equation.params)
        results = result if isinstance(result, (tuple, list)) else (result,)
        for var, array in zip(equation.outputs, results, strict=True):
            self.values[var] = np.asarray(array)

    def value(self, atom: Atom) -> Array:
        """The array of ``atom``: a known value, or the Literal's."""
        if isinstance(atom, Literal):
            return np.asarray(atom.value).astype(atom.type.dtype)
        return self.values[atom]

    def capture(
        self, atom: Atom, builder: ProgramBuilder, environment: dict[Var, Atom]
    ) -> None:
        """Make ``atom``, which is read, a constant if its value is known.

        A view of a constant stays a view. ``environment`` has the atoms of the new
        Program by those of the old one.
        """
        if not isinstance(atom, Var) or atom in environment:
            return
        equation = self.made.get(atom)
        stays = equation is not None and (
            atom not in self.captured or isinstance(primitive_of(equation).kernel, View)
        )
        if equation is not None and stays:
            for operand in equation.inputs:
                self.capture(operand, builder, environment)
            builder.replay(equation, environment)
            return
        environment[atom] = builder.constant(np.array(self.values[atom], order="C"))
        if equation is not None:
            self.notes.append(
                f"{atom.type}: {equation.primitive.name} computed{_at(equation)}"
            )
        else:
            self.notes.append(f"{atom.type}: captured as it is")

    # Scales.

    def chains(self, left: list[Equation]) -> dict[Equation, list[Equation]]:
        """Products with the steps that fold into their weights, by the last step."""
        users: dict[Var, Equation] = {}
        for equation in left:
            for atom in equation.inputs:
                if isinstance(atom, Var):
                    users[atom] = equation
        found: dict[Equation, list[Equation]] = {}
        for equation in left:
            axis = self.output_axis(equation)
            if axis is None:
                continue
            chain, scales = [equation], 0
            while True:
                last = chain[-1].outputs[0]
                step = users.get(last)
                if self.uses[last] != 1 or step is None or step in found:
                    break
                if not self.is_step(step, last, axis):
                    break
                chain.append(step)
                scales += step.primitive.name in ("mul", "div")
            if scales:
                found[chain[-1]] = chain
        return found

    def output_axis(self, equation: Equation) -> int | None:
        """The axis of a product's result that is the output features of its weights.

        The weights are the right operand, if it alone is known. None for other
        equations, and for several such axes.
        """
        params = equation.params
        if len(equation.inputs) != 2 or equation.inputs[1] not in self.values:
            return None
        if equation.outputs[0].type.dtype not in dtypes.INEXACT:
            return None
        if equation.inputs[0] in self.values:
            return None
        if equation.primitive is contraction.dot_general:
            own = contraction.free_axes(
                equation.inputs[1].type.ndim, params["contract"][1], params["batch"][1]
            )
            return equation.outputs[0].type.ndim - 1 if len(own) == 1 else None
        if equation.primitive is padded_convolution and params["gives"] == "output":
            single = len(params["out"][INNER]) == len(params["rhs"][OUTER]) == 1
            return params["out"][INNER][0] if single else None
        return None

    def is_step(self, step: Equation, value: Var, axis: int) -> bool:
        """Whether ``step`` scales or shifts ``value`` by a vector along ``axis``."""
        name = step.primitive.name
        if name not in _STEPS or step.outputs[0].type.dtype != value.type.dtype:
            return False
        first, second = step.inputs
        other = second if first is value else first
        if name in ("div", "sub") and first is not value:
            return False
        return other is not value and self.along(other, axis, value) is not None

    def along(self, atom: Atom, axis: int, value: Var) -> Array | None:
        """The known operand ``atom`` as a vector along ``axis`` of ``value``.

        A scalar stays one. None if it is not known, or changes along another axis too.
        """
        if isinstance(atom, Var) and atom not in self.values:
            return None
        array = self.value(atom)
        if not array.ndim:
            return array
        whole = np.broadcast_to(array, value.type.shape)
        index: list[Any] = [slice(0, 1)] * whole.ndim
        index[axis] = slice(None)
        vector = whole[tuple(index)]
        if not vector.size or not np.array_equal(
            np.broadcast_to(vector, whole.shape), whole
        ):
            return None
        return vector.reshape(-1)

    def folded(
        self,
        chain: list[Equation],
        builder: ProgramBuilder,
        environment: dict[Var, Atom],
    ) -> Atom:
        """The product with other weights, plus one vector, in place of ``chain``."""
        product, *steps = chain
        axis = self.output_axis(product)
        assert axis is not None
        x, w = product.inputs
        value = product.outputs[0]
        wide = np.float64 if value.type.dtype not in dtypes.COMPLEX else np.complex128
        scale, shift = np.ones((), wide), np.zeros((), wide)
        for step in steps:
            first, second = step.inputs
            other = second if first is value else first
            vector = self.along(other, axis, value)
            assert vector is not None
            vector = vector.astype(wide)
            match step.primitive.name:
                case "mul":
                    scale, shift = scale * vector, shift * vector
                case "div":
                    scale, shift = scale / vector, shift / vector
                case "add":
                    shift = shift + vector
                case _:
                    shift = shift - vector
            value = step.outputs[0]
        weights = self.value(w)
        if product.primitive is contraction.dot_general:
            params = product.params
            (own,) = contraction.free_axes(
                weights.ndim, params["contract"][1], params["batch"][1]
            )
        else:
            (own,) = product.params["rhs"][OUTER]
        shape = [1] * weights.ndim
        shape[own] = -1
        factors = scale if not scale.ndim else scale.reshape(shape)
        made = (weights * factors).astype(weights.dtype)
        operands = [rename(x, environment), builder.constant(made)]
        builder.source = product.source
        (result,) = builder.emit(product.primitive, operands, product.params)
        names = ", ".join(step.primitive.name for step in steps)
        self.notes.append(
            f"{w.type}: {names} folded into the weights of "
            f"{product.primitive.name}{_at(product)}"
        )
        if not shift.any():
            return result
        extent = result.type.shape[axis]
        vector = np.broadcast_to(shift, (extent,)).astype(result.type.dtype)
        term = views.broadcast_in_dim(
            builder.constant(vector), shape=result.type.shape, axes=(axis,)
        )
        return e.add(result, term)


def _at(equation: Equation) -> str:
    return f"  ({equation.source})" if equation.source else ""
