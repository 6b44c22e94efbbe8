"""Moves large matrix products out of scans: one product instead of one per iteration.

A product whose operands do not depend on the carry is computed before the loop, for all
slices at once. A product that is only added up, such as the gradient of a weight
matrix, is computed after the loop: the iterations become one more contracted axis.

After it: no scan's body has a large product of either kind. Sums over iterations have
the order of the library's product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from arrayfn import dtypes
from arrayfn.ir import Atom, Equation, Program, Var, entry_of
from arrayfn.ir.builder import current_builder, rewritten
from arrayfn.passes.reads import is_zeros
from arrayfn.primitives import contraction
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import Control, has_effect, needed, primitive_of
from arrayfn.transforms.batching import batch_varying

MIN_WORK: Final = 1 << 16
"""Multiplications from which a product is large; small ones fuse into one kernel."""
MAX_BYTES: Final = 1 << 28
"""The memory allowed for operands of all iterations."""


def products_out_of_loops(program: Program) -> Program:
    """Move large products in scans of ``program`` before or after these scans.

    * ``for x in xs: h = f(h, w @ x)`` becomes ``ys = xs @ w.T`` and ``for y in ys: h =
      f(h, y)``.
    * ``for x, y in xs, ys: g += outer(x, y)`` becomes ``g += xs.T @ ys``.
    """
    if not any(_has_products(equation) for equation in program.equations):
        return program
    zeros: set[Atom] = set()

    def moved(equation: Equation, operands: list[Atom]) -> Sequence[Atom] | None:
        """Emit a scan with its large products outside; None leaves ``equation``.

        An array of zeros is emitted and added to ``zeros``.
        """
        if _has_products(equation):
            return _Scan(equation, operands, zeros).emit()
        if not is_zeros(equation):
            return None
        outputs = current_builder().keep(equation, operands)
        zeros.update(outputs)
        return outputs

    return rewritten(program, moved)


def _has_products(equation: Equation) -> bool:
    """Whether ``equation`` is a scan with large products that may be changed.

    A scan with an ``unroll`` of 0 may not.
    """
    params = equation.params
    if (
        equation.primitive.name != "scan"
        or params["length"] < 2
        or not params["unroll"]
    ):
        return False
    return any(_is_large(inner) for inner in equation.params["program"].equations)


def _is_large(equation: Equation) -> bool:
    """Whether ``equation`` is a large product of matrices of one dtype."""
    if equation.primitive is not contraction.dot_general:
        return False
    types = [a.type for a in (*equation.inputs, *equation.outputs)]
    if len({t.dtype for t in types}) > 1 or types[0].dtype not in dtypes.INEXACT:
        return False
    return contraction.depth(equation) * types[-1].size >= MIN_WORK


class _Scan:
    """A scan whose large products are computed before or after it.

    Attributes:
        consts, carry, xs: ``(body input, operand)`` of each constant, carry and slice.
        params: the params of the scan.
        equations: the equations of the body that are left.
        zeros: the arrays of the new Program that are known to be zeros. A sum that
            begins at one of them needs no addition.
    """

    def __init__(
        self, equation: Equation, operands: Sequence[Atom], zeros: set[Atom]
    ) -> None:
        """Pair the body's inputs with the scan's ``operands``."""
        self.zeros = zeros
        self.equation = equation
        self.params = dict(equation.params)
        self.body: Program = self.params["program"]
        carry_begin = self.params["consts"]
        xs_begin = carry_begin + self.params["carry"]
        pairs = list(zip(self.body.inputs, operands, strict=True))
        self.consts, self.carry = pairs[:carry_begin], pairs[carry_begin:xs_begin]
        self.xs = pairs[xs_begin:]
        self.equations = list(self.body.equations)

    def emit(self) -> list[Atom]:
        """Emit the products before the loop, the loop, and those after it."""
        summed = self.summed_products()
        self.emit_products_before(set(summed.values()))
        return self.emit_loop(summed)

    # Before the loop.

    def products_of_inputs(self, summed: set[Equation]) -> list[Equation]:
        """Return the large products that depend only on constants and slices.

        Products in ``summed`` do not count, because they are computed after the loop,
        nor do products whose results for all iterations exceed ``MAX_BYTES``.
        """
        available = {v for v, _ in (*self.consts, *self.xs)}
        products: list[Equation] = []
        for equation in self.equations:
            if isinstance(primitive_of(equation).kernel, Control):
                continue
            read = [a for a in equation.inputs if isinstance(a, Var)]
            if has_effect(equation) or not available.issuperset(read):
                continue
            available.update(equation.outputs)
            size = equation.outputs[0].type.nbytes * self.params["length"]
            can_move = size <= MAX_BYTES and equation not in summed
            if can_move and _is_large(equation):
                products.append(equation)
        return products

    def emit_products_before(self, summed: set[Equation]) -> None:
        """Emit ``products_of_inputs`` before the loop, for all iterations at once.

        Their results become constants of the loop, or slices if they vary.
        """
        length = self.params["length"]
        products = self.products_of_inputs(summed)
        if not products:
            return
        # A Program of the products of one iteration is mapped over the slices.
        product_results = [equation.outputs[0] for equation in products]
        inputs = [*self.consts, *self.xs]
        products_program = Program(
            self.body.name,
            tuple(v for v, _ in inputs),
            tuple(needed(self.equations, product_results)),
            tuple(product_results),
        )
        mapped = [False] * len(self.consts) + [True] * len(self.xs)
        program, varies = batch_varying(
            products_program, length, mapped, dense=[False] * len(product_results)
        )
        results = current_builder().inline(program, [x for _, x in inputs])
        for var, result, is_sliced in zip(
            product_results, results, varies, strict=True
        ):
            (self.xs if is_sliced else self.consts).append((var, result))
        self.equations = [q for q in self.equations if q not in products]

    # After the loop.

    def summed_products(self) -> dict[int, Equation]:
        """Return the products that are only added to a carry, by the carry's index.

        In ``total = value + term``, ``value`` is the carry, ``term`` the product, and
        ``total`` the carry's next value; none of them has any other use. The operands
        must not be constants, and for all iterations they must fit ``MAX_BYTES``.
        """
        uses: Counter[Atom] = Counter(
            a
            for atoms in (*(q.inputs for q in self.equations), self.body.outputs)
            for a in atoms
        )
        definitions = {v: q for q in self.equations for v in q.outputs}
        constants = {v for v, _ in self.consts}
        slices = {v for v, _ in self.xs}
        kept_bytes = 0
        products: dict[int, Equation] = {}
        for number, (value, _) in enumerate(self.carry):
            total = self.body.outputs[number]
            addition = entry_of(total, definitions)
            if addition is None or addition.primitive is not e.add:
                continue
            if value not in addition.inputs:
                continue
            # ``value + value`` has no other term.
            (term,) = [a for a in addition.inputs if a is not value] or [value]
            product = entry_of(term, definitions)
            is_used_once = all(uses[a] == 1 for a in (value, total, term))
            if product is None or not is_used_once or not _is_large(product):
                continue
            stacked = {a for a in product.inputs if a not in slices}
            size = sum(a.type.nbytes for a in stacked) * self.params["length"]
            if not constants.isdisjoint(product.inputs):
                continue
            if kept_bytes + size <= MAX_BYTES:
                kept_bytes += size
                products[number] = product
        return products

    def emit_loop(self, summed: dict[int, Equation]) -> list[Atom]:
        """Emit the scan without the products ``summed``, then these products.

        The scan stacks the operands of these products that are not slices already.
        Returns the results of the original scan.
        """
        # The new body: without the carries of the sums, and with the operands of their
        # products as further stacked results.
        count = len(self.carry)
        state = [c for k, c in enumerate(self.carry) if k not in summed]
        ys = list(self.body.outputs[count:])
        slices = dict(self.xs)
        operands = [a for q in summed.values() for a in q.inputs if a not in slices]
        stacked_operands = list(dict.fromkeys(operands))
        outputs = [
            *(a for k, a in enumerate(self.body.outputs[:count]) if k not in summed),
            *ys,
            *stacked_operands,
        ]
        equations = needed(self.equations, outputs)
        read = {a for q in equations for a in q.inputs} | {*outputs}
        consts = [(v, x) for v, x in self.consts if v in read]
        xs = [(v, x) for v, x in self.xs if v in read]
        inputs = [*consts, *state, *xs]
        program = Program(
            self.body.name,
            tuple(v for v, _ in inputs),
            tuple(equations),
            tuple(outputs),
        )
        params: dict[str, Any] = {
            **self.params,
            "program": program,
            "consts": len(consts),
            "carry": len(state),
        }
        results = current_builder().emit(
            self.equation.primitive, [operand for _, operand in inputs], params
        )
        # The results of the original scan: its carries, of which the sums are computed
        # here, then its stacked results.
        final_state = iter(results[: len(state)])
        result_count = len(state) + len(ys)
        stacked = slices | dict(
            zip(stacked_operands, results[result_count:], strict=True)
        )
        return [
            *(
                self.emit_sum(operand, summed[k], stacked)
                if k in summed
                else next(final_state)
                for k, (_, operand) in enumerate(self.carry)
            ),
            *results[len(state) : result_count],
        ]

    def emit_sum(
        self, initial: Atom, product: Equation, stacked: dict[Any, Atom]
    ) -> Atom:
        """Emit ``initial`` plus the products of all iterations, as one product.

        ``stacked`` has the operands of all iterations along a new axis 0, which becomes
        one more contracted axis: the sum over t of ``x[t] @ y[t]`` is ``x[t, i, k] *
        y[t, k, j]`` summed over t and k.
        """
        x, y = (stacked[a] for a in product.inputs)
        contract, batch = product.params["contract"], product.params["batch"]
        params = {
            **product.params,
            "contract": tuple((0, *(k + 1 for k in axes)) for axes in contract),
            "batch": tuple(tuple(k + 1 for k in axes) for axes in batch),
        }
        result = contraction.dot_general(x, y, **params)
        return result if initial in self.zeros else e.add(initial, result)
