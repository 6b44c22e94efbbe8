"""Moves large matrix products out of scans: one product instead of one per iteration.

A product whose operands do not depend on the carry is computed before the loop, for all
slices at once. A product that is only added up, such as the gradient of a weight
matrix, is computed after the loop: the iterations become one more contracted axis.

After it: no scan's body has a large product of either kind. Sums over iterations have
the order of the library's product.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from arrayfn import dtypes
from arrayfn.ir import Atom, Equation, Literal, Program, Var
from arrayfn.ir.builder import ProgramBuilder, current_builder, rewritten
from arrayfn.primitives import contraction, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import Control, has_effect, needed, primitive_of
from arrayfn.transforms.batching import batch_varying

MIN_WORK: Final = 1 << 16
"""Multiplications from which a product is large; small ones fuse into one kernel."""
MAX_BYTES: Final = 1 << 28
"""The memory allowed for operands of all iterations."""


def products_out_of_loops(program: Program) -> Program:
    """``program`` with large products of its scans moved before or after them."""
    if not any(_has_products(equation) for equation in program.equations):
        return program
    zeros: set[Atom] = set()

    def moved(equation: Equation, operands: list[Atom]) -> Sequence[Atom] | None:
        if _has_products(equation):
            return _Scan(current_builder(), equation, operands, zeros).emit()
        if not _is_zeros(equation):
            return None
        made = current_builder().keep(equation, operands)
        zeros.update(made)
        return made

    return rewritten(program, moved)


def _has_products(equation: Equation) -> bool:
    if equation.primitive.name != "scan" or equation.params["length"] < 2:
        return False
    return any(_is_large(inner) for inner in equation.params["program"].equations)


def _is_zeros(equation: Equation) -> bool:
    if equation.primitive is not views.broadcast_in_dim:
        return False
    value = equation.inputs[0]
    return isinstance(value, Literal) and value.value == 0


def _is_large(equation: Equation) -> bool:
    if equation.primitive is not contraction.dot_general:
        return False
    types = [a.type for a in (*equation.inputs, *equation.outputs)]
    if len({t.dtype for t in types}) > 1 or types[0].dtype not in dtypes.INEXACT:
        return False
    contract, _ = equation.params["contract"]
    depth = math.prod(types[0].shape[axis] for axis in contract)
    return depth * types[-1].size >= MIN_WORK


class _Scan:
    """The parts of a scan, and the operands of the products moved out of it.

    ``fixed``, ``carry`` and ``xs`` pair an input of the body with an operand;
    ``zeros`` are arrays of zeros.
    """

    def __init__(
        self,
        builder: ProgramBuilder,
        equation: Equation,
        operands: Sequence[Atom],
        zeros: set[Atom],
    ) -> None:
        self.zeros = zeros
        self.builder = builder
        self.equation = equation
        self.params = dict(equation.params)
        self.body: Program = self.params["program"]
        first = self.params["consts"]
        second = first + self.params["carry"]
        pairs = list(zip(self.body.inputs, operands, strict=True))
        self.fixed, self.carry = pairs[:first], pairs[first:second]
        self.xs = pairs[second:]
        self.equations = list(self.body.equations)

    def emit(self) -> list[Atom]:
        """Emit the loop and the products before and after it; return its results."""
        sums = self.sums()
        self.before({id(product) for product in sums.values()})
        return self.loop(sums)

    # Before the loop.

    def before(self, summed: set[int]) -> None:
        """Emit products of constants and slices, except ``summed``, before the loop."""
        length = self.params["length"]
        ready = {v for v, _ in (*self.fixed, *self.xs)}
        wanted: list[Equation] = []
        for equation in self.equations:
            primitive = primitive_of(equation)
            computed = not isinstance(primitive.kernel, Control) and not has_effect(
                equation
            )
            if computed and all(
                not isinstance(a, Var) or a in ready for a in equation.inputs
            ):
                ready.update(equation.outputs)
                size = equation.outputs[0].type.nbytes * length
                fits = size <= MAX_BYTES and id(equation) not in summed
                if fits and _is_large(equation):
                    wanted.append(equation)
        if not wanted:
            return
        taken = [equation.outputs[0] for equation in wanted]
        inputs = [*self.fixed, *self.xs]
        alone = Program(
            self.body.name,
            tuple(v for v, _ in inputs),
            tuple(needed(self.equations, taken)),
            tuple(taken),
        )
        mapped = [False] * len(self.fixed) + [True] * len(self.xs)
        program, varies = batch_varying(alone, length, mapped, [False] * len(taken))
        results = self.builder.inline(program, [operand for _, operand in inputs])
        for var, result, of_steps in zip(taken, results, varies, strict=True):
            (self.xs if of_steps else self.fixed).append((var, result))
        self.equations = [q for q in self.equations if q not in wanted]

    # After the loop.

    def sums(self) -> dict[int, Equation]:
        """The products that are only added to a carry, by the carry's index."""
        uses: Counter[Atom] = Counter(
            a
            for atoms in (*(q.inputs for q in self.equations), self.body.outputs)
            for a in atoms
        )
        made = {v: q for q in self.equations for v in q.outputs}
        inputs = {v for v, _ in (*self.fixed, *self.xs)}
        kept = 0
        found: dict[int, Equation] = {}
        for number, (value, _) in enumerate(self.carry):
            total = self.body.outputs[number]
            adds = made.get(total) if isinstance(total, Var) else None
            if adds is None or adds.primitive is not e.add or value not in adds.inputs:
                continue
            (term,) = [a for a in adds.inputs if a is not value] or [value]
            product = made.get(term) if isinstance(term, Var) else None
            alone = all(uses[a] == 1 for a in (value, total, term))
            if product is None or not alone or not _is_large(product):
                continue
            read = {a for a in product.inputs if a not in inputs}
            size = sum(a.type.nbytes for a in read) * self.params["length"]
            fixed = any(a is v for a in product.inputs for v, _ in self.fixed)
            if fixed or kept + size > MAX_BYTES:
                continue
            kept += size
            found[number] = product
        return found

    def loop(self, sums: dict[int, Equation]) -> list[Atom]:
        """The scan without ``sums``, which follow it."""
        count = len(self.carry)
        state = [c for k, c in enumerate(self.carry) if k not in sums]
        ys = list(self.body.outputs[count:])
        slices = dict(self.xs)
        factors = [a for q in sums.values() for a in q.inputs if a not in slices]
        extra = list(dict.fromkeys(factors))
        outputs = [
            *(a for k, a in enumerate(self.body.outputs[:count]) if k not in sums),
            *ys,
            *extra,
        ]
        equations = needed(self.equations, outputs)
        read = {a for q in equations for a in q.inputs} | {*outputs}
        fixed = [(v, x) for v, x in self.fixed if v in read]
        xs = [(v, x) for v, x in self.xs if v in read]
        inputs = [*fixed, *state, *xs]
        program = Program(
            self.body.name,
            tuple(v for v, _ in inputs),
            tuple(equations),
            tuple(outputs),
        )
        params: dict[str, Any] = {
            **self.params,
            "program": program,
            "consts": len(fixed),
            "carry": len(state),
        }
        made = self.builder.emit(
            self.equation.primitive, [operand for _, operand in inputs], params
        )
        last = iter(made[: len(state)])
        kept = len(state) + len(ys)
        stacked = {**slices, **dict(zip(extra, made[kept:], strict=True))}
        return [
            *(
                self.total(operand, sums[k], stacked) if k in sums else next(last)
                for k, (_, operand) in enumerate(self.carry)
            ),
            *made[len(state) : kept],
        ]

    def total(self, first: Atom, product: Equation, stacked: dict[Any, Atom]) -> Atom:
        """``first`` plus the products of all iterations, whose operands are stacked."""
        x, y = (stacked[a] for a in product.inputs)
        contract, batch = product.params["contract"], product.params["batch"]
        params = {
            **product.params,
            "contract": tuple((0, *(k + 1 for k in axes)) for axes in contract),
            "batch": tuple(tuple(k + 1 for k in axes) for axes in batch),
        }
        result = contraction.dot_general(x, y, **params)
        return result if first in self.zeros else e.add(first, result)
