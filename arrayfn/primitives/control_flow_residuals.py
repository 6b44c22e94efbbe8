"""The residuals of a split scan: stacked, hoisted before the loops, or recomputed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.primitives import views
from arrayfn.primitives.base import Convert, Scalar, View, primitive_of
from arrayfn.primitives.control_flow import Parts, building, unselected

# Recomputed in the linear loop rather than stacked by the known one: elementwise
# equations of small cost that read at most two more arrays.
_CHEAP_COST: Final = 4
_MAX_EQUATIONS: Final = 4  # that are cheaper than stacking a value
_MAX_ARRAYS: Final = 2  # that may be read to recompute one


class Residuals:
    """Chooses how a split scan passes each residual to its linear loop.

    The linear loop reads constants and slices of the known loop directly. Values that
    depend only on constants are computed once before the loops. Cheap values are
    recomputed in the linear loop. All others are stacked by the known loop.

    Attributes:
        whole: the equation that is split.
        hoisted: the equations to run before the loops.
        recomputed: the equations of the known step that the linear step repeats, in
            order (the keys of a dict).
        fixed, sliced: the constants and the slices of the linear step, as Vars of the
            step, each with the operand of the linear scan that it stands for.
        stacked: the Vars of the known step to stack, each with the new result of the
            known scan that has its values of all iterations along axis 0.
        outside: the constants and hoisted values as Vars of the known step, each with
            its Atom outside of the loops.
        slices: the slices of the known step, each with the array that is sliced.
        stacks: the values of the known step that some result of the known scan stacks,
            each with this result. Includes ``stacked``.
        invariant: the equations of the known step that depend only on constants, by the
            Vars that they define.
        definitions: the equation of each Var of the known step.
        position: the position of each of these Vars in the step's order.
        defined: the Vars that the linear step computes itself.
    """

    def __init__(self, whole: Equation, parts: Parts, unknown: Sequence[bool]) -> None:
        """Choose for all residuals of ``parts``, the split body of the scan ``whole``.

        ``unknown`` has a flag for each operand of the scan.
        """
        self.whole = whole
        self.hoisted: list[Equation] = []
        self.recomputed: dict[Equation, None] = {}
        self.fixed: dict[Var, Atom] = {}
        self.sliced: dict[Var, Atom] = {}
        self.stacked: dict[Var, Var] = {}
        # Operands of the scan: constants, then the carry, then from begin on slices.
        consts = whole.params["consts"]
        begin = consts + whole.params["carry"]
        body = parts.known
        # The number of the operand for each input of the known step.
        numbers = unselected(range(len(whole.inputs)), unknown)
        number_of = dict(zip(body.inputs, numbers, strict=True))
        self.outside: dict[Var, Atom] = {
            v: whole.inputs[k] for v, k in number_of.items() if k < consts
        }
        self.slices = {v: whole.inputs[k] for v, k in number_of.items() if k >= begin}
        # Outputs of the known step: the carry, stacked results, and residuals.
        count = len(body.outputs) - parts.residuals
        carried = sum(consts <= k < begin for k in numbers)
        results = unselected(whole.outputs, parts.unknown)
        self.stacks: dict[Atom, Var] = dict(
            zip(body.outputs[carried:count], results[carried:], strict=True)
        )
        self.invariant = _invariant_definitions(body, self.outside)
        self.definitions = body.definitions()
        self.position = {v: k for k, v in enumerate(self.definitions)}
        self.defined = {
            v
            for linear_equation in parts.linear.equations
            for v in linear_equation.outputs
        }
        residuals = [v for v in parts.residual_outputs if isinstance(v, Var)]
        # In the order of definitions: what is available for one may serve the next.
        for var in sorted(residuals, key=lambda v: self.position.get(v, -1)):
            self.keep(var)

    def keep(self, var: Var) -> None:
        """Make the residual ``var`` available in the linear step.

        The linear step reads ``var`` if it is available, recomputes it if that is
        cheap, and otherwise gets it from the known loop, which stacks it.
        """
        if self.is_available(var):
            self.read(var)
            return
        recipe = self.recipe(var)
        if recipe is None:
            type = var.type
            length = self.whole.params["length"]
            stacked = type.with_shape((length, *type.shape))
            stack = Var(stacked.with_varying(type.varying))
            # ``stacked`` has the new stacks of the known loop, ``stacks`` all of them.
            self.stacks[var] = self.stacked[var] = stack
            self.read(var)
            return
        recipe_results = {v for equation in recipe for v in equation.outputs}
        for equation in recipe:
            for atom in equation.inputs:
                if isinstance(atom, Var) and atom not in recipe_results:
                    self.read(atom)
        self.recomputed.update(dict.fromkeys(recipe))

    def is_available(self, var: Var) -> bool:
        """Whether the linear loop can get ``var`` without a further stacked result."""
        available = (self.slices, self.outside, self.invariant, self.stacks)
        return any(var in values for values in available)

    def read(self, var: Var) -> None:
        """Make ``var``, which is available, a constant or slice of the linear step."""
        if var in self.slices:
            self.sliced[var] = self.slices[var]
        elif var in self.outside or var in self.invariant:
            self._hoist(var)
            self.fixed[var] = self.outside[var]
        else:
            self.sliced[var] = self.stacks[var]

    def recipe(self, var: Var) -> list[Equation] | None:
        """Return at most four cheap equations that compute ``var``, in order.

        They start from available values. Returns None if there are no such equations,
        or if they would make the linear loop read more than two further arrays.
        """
        recipe: dict[Var, Equation] = {}
        leaves: set[Var] = set()
        pending = [var]
        while pending:
            value = pending.pop()
            if value in recipe:
                continue
            # The linear step may define a value itself, such as a view of a literal. It
            # cannot be an input then, but its equation is repeated at no cost.
            if self.is_available(value) and value not in self.defined:
                leaves.add(value)
                continue
            definition = self.definitions.get(value)
            if (
                definition is None
                or not _is_cheap(definition)
                or len(recipe) == _MAX_EQUATIONS
            ):
                return None
            recipe[value] = definition
            pending += [a for a in definition.inputs if isinstance(a, Var)]
        # The linear loop reads the slices and constants in ``sliced`` and ``fixed``
        # already. Scalars are not counted.
        new_arrays = [
            v for v in leaves if v.type.shape and v not in self.sliced | self.fixed
        ]
        if len(new_arrays) > _MAX_ARRAYS:
            return None
        return [q for v, q in self.definitions.items() if v in recipe]

    def _hoist(self, var: Var) -> None:
        """Compute ``var``, which depends only on constants, before the loops.

        Adds the equations to ``hoisted``, and the results to ``outside``.
        """
        if var in self.outside:
            return
        definition = self.invariant[var]
        for atom in definition.inputs:
            if isinstance(atom, Var):
                self._hoist(atom)
        builder = building(self.whole)
        builder.replay(definition, self.outside)
        self.hoisted += builder.equations


def _is_cheap(equation: Equation) -> bool:
    """Whether recomputing ``equation`` is cheaper than stacking its result."""
    primitive = primitive_of(equation)
    kernel = primitive.kernel
    if isinstance(kernel, Scalar):
        return kernel.cost <= _CHEAP_COST
    return isinstance(kernel, Convert) or (
        isinstance(kernel, View) and primitive is not views.relayout
    )


def _invariant_definitions(body: Program, fixed: Iterable[Var]) -> dict[Var, Equation]:
    """Map each Var of ``body`` that depends only on ``fixed`` inputs to its equation.

    A Var that depends on no input, such as a literal's broadcast, counts too.
    """
    invariant = set(fixed)
    definitions: dict[Var, Equation] = {}
    for equation in body.equations:
        if all(not isinstance(a, Var) or a in invariant for a in equation.inputs):
            invariant.update(equation.outputs)
            definitions.update(dict.fromkeys(equation.outputs, equation))
    return definitions
