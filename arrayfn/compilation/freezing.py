"""Freezes a Program: captured arrays are computed with, and folded into weights.

``freeze_program`` computes every equation that depends only on captured arrays, by the
NumPy references, so that the results are captured in place of its operands. The recipe
``"scales"`` moves factors and terms of a product's output features, which are such
arrays, into its weights: batch normalisation of trained layers becomes one addition.
That changes how results are rounded. ``weight_recipes`` has those that store weights in
another way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from arrayfn import dtypes
from arrayfn.compilation.weight_recipes import (
    Weights,
    check_recipes,
    product_of,
    weights_of,
)
from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.ir.builder import ProgramBuilder, rename
from arrayfn.passes.inline_calls import inline_calls
from arrayfn.passes.reads import resolve_reads
from arrayfn.primitives import elementwise as e
from arrayfn.primitives import views
from arrayfn.primitives.base import View, has_effect, primitive_of
from arrayfn.primitives.calls import array_of_atom
from arrayfn.primitives.rules import as_list

Array = np.ndarray[Any, Any]
_STEPS: Final = ("mul", "div", "add", "sub")


class Frozen(NamedTuple):
    """A Program whose captured arrays are folded, and a note on each of them."""

    program: Program
    notes: tuple[str, ...]


def freeze_program(
    program: Program, recipes: tuple[str, ...], keep: Callable[[Equation], bool]
) -> Frozen:
    """Compute what depends on captured arrays only, and fold scales into weights.

    With captured ``w`` and ``s``, ``y = (x @ w) * exp(s)`` becomes ``y = (x @ w) * c``,
    where ``c`` is the new constant ``exp(s)``. With the recipe ``"scales"`` it becomes
    ``y = x @ d``, where ``d`` is ``w * c``. Calls that ``keep`` accepts, for which
    there is a kernel, stay calls.
    """
    check_recipes(recipes)
    return _Freezer(inline_calls(program, keep), recipes).run()


class _Freezer:
    """Folds the captured arrays of one Program.

    Attributes:
        values: the arrays that are known.
        captured: the captured arrays, and the values computed from them.
        definitions: the equation that makes each value.
        uses: how often each value is read; outputs count.
        notes: what has been done.
        reads: where each value lies, as ``resolve_reads`` finds it.
    """

    def __init__(self, program: Program, recipes: tuple[str, ...]) -> None:
        """Begin with the captured arrays as the only known values."""
        self.program = program
        self.recipes = recipes
        pairs = program.constant_pairs()
        self.values: dict[Var, Array] = {var: np.asarray(x) for var, x in pairs}
        self.captured = set(self.values)
        self.definitions: dict[Var, Equation] = {}
        self.uses: Counter[Atom] = Counter(program.outputs)
        self.notes: list[str] = []
        self.reads = resolve_reads(program)

    def run(self) -> Frozen:
        """Compute what is known, fold scales into weights, and build what is left."""
        program = self.program
        for equation in program.equations:
            self.uses.update(equation.inputs)
            self.definitions.update(dict.fromkeys(equation.outputs, equation))
            self.compute(equation)
        remaining = [
            equation
            for equation in program.equations
            if not all(v in self.values for v in equation.outputs)
        ]
        # A chain is emitted in place of its last equation; ``inside`` are the others.
        chains = self.chains(remaining) if "scales" in self.recipes else {}
        inside = {q for chain in chains.values() for q in chain[:-1]}
        builder = ProgramBuilder(program.name)
        environment: dict[Var, Atom] = dict(
            zip(program.inputs, builder.inputs_of(program), strict=True)
        )
        with builder:
            for equation in remaining:
                if equation in inside:
                    continue
                chain = chains.get(equation, [equation])
                result = self.product(chain, builder, environment)
                if result is not None:
                    environment[equation.outputs[0]] = result
                    continue
                for atom in equation.inputs:
                    self.capture(atom, builder, environment)
                builder.replay(equation, environment)
            for atom in program.outputs:
                self.capture(atom, builder, environment)
        outputs = [rename(atom, environment) for atom in program.outputs]
        return Frozen(builder.build(outputs), tuple(self.notes))

    def compute(self, equation: Equation) -> None:
        """Compute ``equation`` into ``values`` if its operands are known.

        Its results are added to ``captured``, too, if one of the operands is there.
        """
        operands = [a for a in equation.inputs if isinstance(a, Var)]
        primitive = primitive_of(equation)
        known = all(a in self.values for a in operands)
        if not known or has_effect(equation) or primitive.is_collective:
            return
        if any(a in self.captured for a in operands):
            self.captured.update(equation.outputs)
        arrays = [array_of_atom(a, self.values) for a in equation.inputs]
        with np.errstate(all="ignore"):
            result = primitive.reference(*arrays, **equation.params)
        for var, array in zip(equation.outputs, as_list(result), strict=True):
            self.values[var] = np.asarray(array)

    def capture(
        self, atom: Atom, builder: ProgramBuilder, environment: dict[Var, Atom]
    ) -> None:
        """Make ``atom`` a constant of the new Program if its value is known.

        A view of a constant stays a view. ``environment`` has the atoms of the new
        Program by those of the old one.
        """
        if not isinstance(atom, Var) or atom in environment:
            return
        equation = self.definitions.get(atom)
        if equation is not None and (
            atom not in self.captured or isinstance(primitive_of(equation).kernel, View)
        ):
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

    def chains(self, equations: list[Equation]) -> dict[Equation, list[Equation]]:
        """Return the chains that fold into weights, by the last equation of each.

        A chain is a product and then multiplications, divisions, additions and
        subtractions by vectors of output features: ``x @ w``, ``- mean``, ``* scale``.
        """
        users: dict[Var, Equation] = {}
        for equation in equations:
            for atom in equation.inputs:
                if isinstance(atom, Var):
                    users[atom] = equation
        chains: dict[Equation, list[Equation]] = {}
        for equation in equations:
            axis = self.output_axis(equation)
            if axis is None:  # no product with weights, or several axes of features
                continue
            chain, scales = [equation], 0
            while True:
                last = chain[-1].outputs[0]
                step = users.get(last)  # the only user if ``last`` has one use
                if self.uses[last] != 1 or step is None or step in chains:
                    break
                if not self.is_step(step, last, axis):
                    break
                chain.append(step)
                scales += step.primitive.name in ("mul", "div")
            if scales:  # additions would gain nothing
                chains[chain[-1]] = chain
        return chains

    def weights(self, equation: Equation) -> Weights | None:
        """Return the weights of a product of a known operand and another; else None."""
        # ``values`` has the arrays of the Atoms that are known.
        sides = [k for k, a in enumerate(equation.inputs) if a in self.values]
        if len(equation.inputs) != 2 or len(sides) != 1:
            return None
        return weights_of(equation, sides[0])

    def output_axis(self, equation: Equation) -> int | None:
        """Return the product's only axis of output features; None if there are more."""
        weights = self.weights(equation)
        if weights is None or weights.first - weights.batch != 1:
            return None
        return weights.product_axes[-1]

    def is_step(self, step: Equation, value: Var, axis: int) -> bool:
        """Whether ``step`` scales or shifts ``value`` by a vector along ``axis``."""
        name = step.primitive.name
        if name not in _STEPS or step.outputs[0].type.dtype != value.type.dtype:
            return False
        first, second = step.inputs
        other = second if first is value else first
        if name in ("div", "sub") and first is not value:
            return False
        return other is not value and self.vector(other, axis, value) is not None

    def vector(self, atom: Atom, axis: int, value: Var) -> Array | None:
        """Return the known operand ``atom`` as a vector along ``axis`` of ``value``.

        A scalar stays one. None if it is not known, or changes along another axis too.
        ``atom`` and ``value`` are operands of one elementwise equation.
        """
        if isinstance(atom, Var) and atom not in self.values:
            return None
        array = array_of_atom(atom, self.values)
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

    def product(
        self,
        chain: Sequence[Equation],
        builder: ProgramBuilder,
        environment: dict[Var, Atom],
    ) -> Atom | None:
        """Emit a product with folded weights, plus one vector, in place of ``chain``.

        ``chain`` is a product and the steps after it. Adds notes. None if no recipe
        changes the weights.
        """
        product, *steps = chain
        weights = self.weights(product)
        if weights is None:
            return None
        operand, x = product.inputs[weights.side], product.inputs[1 - weights.side]
        assert isinstance(operand, Var)
        array, shift = self.values[operand], None
        if steps:
            array, shift = self.folded(weights, steps)
        self.capture(x, builder, environment)
        builder.source = product.source
        # How weights lie in a captured array says whether the product copies them.
        read = None if steps else self.reads[operand]
        if read is not None and read.base not in self.program.constants:
            read = None
        other = rename(x, environment)
        changed = product_of(weights, array, other, read, self.recipes, builder)
        if changed is None and not steps:
            return None
        if changed is None:
            result = weights.product(builder.constant(array), other)
        else:
            result, note = changed
            self.notes.append(f"{operand.type}: {note}{_at(product)}")
        if steps:
            names = ", ".join(step.primitive.name for step in steps)
            self.notes.append(
                f"{operand.type}: {names} folded into the weights of "
                f"{product.primitive.name}{_at(product)}"
            )
        if shift is None:
            return result
        # Add the vector that additions and subtractions in the chain amount to.
        axis = weights.product_axes[-1]
        vector = np.broadcast_to(shift, result.type.shape[axis]).astype(
            result.type.dtype
        )
        term = views.broadcast_in_dim(
            builder.constant(vector), shape=result.type.shape, axes=(axis,)
        )
        return e.add(result, term)

    def folded(
        self, weights: Weights, steps: Sequence[Equation]
    ) -> tuple[Array, Array | None]:
        """Fold ``steps`` into the weights; return these and the vector to add.

        ``(x @ w - b) * s`` is ``x @ (w * s) + (-b * s)``. The vector is along the axis
        of output features. A vector of zeros is returned as None.
        """
        axis = weights.product_axes[-1]
        value = weights.equation.outputs[0]
        wide = dtypes.widest(value.type.dtype)
        # So far, the value is ``product * scale + shift``.
        scale, shift = np.ones((), wide), np.zeros((), wide)
        for step in steps:
            first, second = step.inputs
            other = second if first is value else first
            vector = self.vector(other, axis, value)
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
        operand = weights.equation.inputs[weights.side]
        assert isinstance(operand, Var)
        array = self.values[operand]
        # The scale lies along the weights' axis of output features.
        shape = [1] * array.ndim
        shape[weights.order[weights.first - 1]] = -1
        factors = scale if not scale.ndim else scale.reshape(shape)
        return (array * factors).astype(array.dtype), shift if shift.any() else None


def _at(equation: Equation) -> str:
    """Return the user's line of ``equation``, to end a note with."""
    return f"  ({equation.source})" if equation.source else ""
