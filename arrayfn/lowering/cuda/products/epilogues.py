"""Folds nests that follow a product into the product, as cuBLASLt's epilogues.

A kernel that scales a product, adds an array or a row to it and applies ReLU, or does
the first of these, is folded into the product:

    activation(alpha * product + beta * added + bias)

All of it is computed as the product is summed, and rounded once. The product itself is
never written. For example, a residual stream is added where the product is computed,
and parameters take their descent step where their gradient is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from typing_extensions import override

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.ir import ArrayType, Var
from arrayfn.lowering.cuda.destinations import Product, RedirectableCall, StepRewrite
from arrayfn.lowering.cuda.products.epilogue_forms import Epilogue, EpilogueMatcher
from arrayfn.lowering.kernel_ir import (
    ArrayOperand,
    Compute,
    Constant,
    Load,
    Nest,
    Reduce,
    Statement,
    Store,
    Value,
)
from arrayfn.lowering.libraries.calls import LibraryCall
from arrayfn.lowering.split import restrict, with_dependencies
from arrayfn.lowering.steps import NestStep, PlanStep


class EpilogueFolding(StepRewrite):
    """Folds the nests of a block that continue from a product into the product.

    A product with an epilogue moves to the position of the first nest that reads it.
    """

    @override
    def run(self) -> tuple[list[PlanStep], dict[int, RedirectableCall]]:
        """Return the steps with epilogues folded in, and the changed products.

        Products that move come before the first nest that read them. Nests that compute
        factors are inserted.
        """
        self.moved: dict[int, tuple[int, LibraryCall]] = {}
        """The new position and call of each product that changes, by its position."""
        self.factor_arrays: dict[tuple[str, float, DType], Var] = {}
        """Scalars that products are multiplied by, which ``inserted`` nests compute.

        The keys are the name of ``times``, ``alpha`` and the dtype: see
        ``factor_array``.
        """
        self.inserted: dict[int, list[NestStep]] = {}
        """New nests, by the position of the step that they precede."""
        for position, producer in self.redirectable.items():
            if isinstance(producer, Product):
                self.fold(position, producer.library_call)
        steps: list[PlanStep] = []
        changed: dict[int, RedirectableCall] = {}
        for position, step in enumerate(self.steps):
            steps += self.inserted.get(position, [])
            for origin, (before, call) in self.moved.items():
                if before == position:
                    changed[len(steps)] = Product(call)
                    steps.append(self.steps[origin])
            if position not in self.dropped:
                steps.append(step)
        return steps, changed

    def fold(self, position: int, call: LibraryCall) -> None:
        """Give the product at ``position``, made by ``call``, the longest epilogue.

        All nests that read the product must begin with the same operations on it.
        """
        product = call.writes["c"].array
        readers = [k for k in self.users.get(product, ()) if k != position]
        if product in self.outputs or not readers or readers[0] < position:
            return
        nests = [self.nest_at(k, product) for k in readers]
        if None in nests:
            return
        chains = [
            EpilogueMatcher(n, self.operand_of(n, product), call).matches()
            for n in nests
            if n is not None
        ]
        # Each element has the same epilogue of all nests, with its value in each nest.
        common = takewhile(
            lambda matches: all(epilogue == matches[0][0] for epilogue, _ in matches),
            zip(*chains, strict=False),
        )
        for matches in reversed([*common]):  # the longest epilogue first
            values = [value for _, value in matches]
            if self.fold_values(position, call, matches[0][0], readers, values):
                return

    def nest_at(self, position: int, product: Var) -> Nest | None:
        """Return the nest at ``position``, if it reads ``product`` as one operand.

        None if the step is no nest, was dropped, or also writes the product's memory.
        """
        step = self.steps[position]
        if not isinstance(step, NestStep) or step.partials or position in self.dropped:
            return None
        touched = [o for o in step.nest.operands if self.root_of(o.array) is product]
        is_read = len(touched) == 1 and not touched[0].written
        return step.nest if is_read else None

    def fold_values(
        self,
        position: int,
        call: LibraryCall,
        epilogue: Epilogue,
        readers: Sequence[int],
        values: Sequence[Value],
    ) -> bool:
        """Have the product compute the nests' ``values``, if that saves memory traffic.

        ``values`` are the same value in each of the nests. Traffic is saved if one of
        the nests stores the value, or if the value is a sum with an array that
        otherwise each nest would read. The product moves before its first reader, so no
        step in between may write what the product reads, or use the array of the
        result. Returns whether the product was changed.

        Args:
            position: The product's position.
            call: The product's call.
            epilogue: What computes the values from the product.
            readers: The positions of the nests that read the product.
            values: The value in each of these nests.
        """
        product = call.writes["c"].array
        # The nests that store the value where the product could store it instead.
        stores = [
            (reader, store)
            for reader, value in zip(readers, values, strict=True)
            if (store := self.store_of(reader, value, product)) is not None
        ]
        if len(stores) > 1 or not (stores or epilogue.added):
            return False
        output = Var(product.type)
        if stores:
            ((where, store),) = stores
            output = self.nest(where).operands[store.operand].array
            between = [v for s in self.steps[position + 1 : where] for v in s.arrays()]
            if self.root_of(output) in map(self.root_of, between):
                return False
        if self.overwritten(self.steps[position + 1 : readers[0]], call):
            return False
        alpha = None
        if epilogue.times is not None:
            alpha = self.factor_array(
                readers[0], epilogue.times, epilogue.alpha, product
            )
        folded = epilogue.applied_to(call, output, alpha)
        for reader, value in zip(readers, values, strict=True):
            self.read_instead(reader, value, product, output)
        self.dropped.add(position)
        self.moved[position] = readers[0], folded
        return True

    def factor_array(
        self, position: int, times: Value, alpha: float, product: Var
    ) -> Var:
        """Return the array of the scalar ``alpha * times`` that scales the product.

        A new nest computes it, as soon as the arrays that ``times`` is computed from
        are written. Products with the same factor share the array.

        Args:
            position: The position of the nest that has ``times``.
            times: A value of that nest that is the same for all elements.
            alpha: The constant factor.
            product: The product, in whose compute dtype the scalar is.
        """
        dtype = dtypes.compute_dtype(product.type.dtype)
        known = self.factor_arrays.get((times.name, alpha, dtype))
        if known is not None:
            return known
        scalar = Var(ArrayType((), dtype))
        nest = _factor_nest(self.nest(position), times, alpha, scalar)
        written = [
            k
            for operand in nest.operands
            for k in self.users.get(self.root_of(operand.array), ())
            if any(
                self.root_of(v) is self.root_of(operand.array)
                for v in self.steps[k].writes
            )
        ]
        before = max((k + 1 for k in written if k < position), default=0)
        self.inserted.setdefault(before, []).append(NestStep(nest, []))
        self.factor_arrays[times.name, alpha, dtype] = scalar
        return scalar

    def operand_of(self, nest: Nest, array: Var) -> int:
        """Return the number of the operand of ``nest`` with the memory of ``array``."""
        return next(
            k for k, o in enumerate(nest.operands) if self.root_of(o.array) is array
        )

    def nest(self, position: int) -> Nest:
        """Return the nest of the step at ``position``."""
        step = self.steps[position]
        assert isinstance(step, NestStep)
        return step.nest

    def store_of(self, position: int, value: Value, product: Var) -> Store | None:
        """Return the store of ``value`` in the nest at ``position``, for the product.

        The product can store instead of the nest if the store is unconditional, without
        computed indices, to an array with the layout and dtype of ``product``. None if
        there is no such store.
        """
        nest = self.nest(position)
        product_operand = nest.operands[self.operand_of(nest, product)]
        for s in nest.statements:
            if isinstance(s, Store) and s.value == value:
                to = nest.operands[s.operand]
                same = (to.strides, to.offset, to.dtype) == (
                    product_operand.strides,
                    product_operand.offset,
                    product_operand.dtype,
                )
                if same and not s.indices and s.where is None:
                    return s
        return None

    def overwritten(self, steps: Sequence[PlanStep], call: LibraryCall) -> bool:
        """Whether ``steps`` write an array that ``call``, a product's, reads.

        Then the product cannot move behind them.
        """
        read = {self.root_of(pointer.array) for pointer in call.reads.values()}
        return any(self.root_of(var) in read for step in steps for var in step.writes)

    def read_instead(
        self, position: int, value: Value, product: Var, output: Var
    ) -> None:
        """Have the nest at ``position`` load ``value`` from ``output``.

        The nest computed ``value`` from ``product``, which the product's epilogue does
        instead, and writes to ``output``. The nest's statements that compute or store
        it are dropped, and so is the whole nest if it stores nothing else.
        """
        nest = self.nest(position)
        number = self.operand_of(nest, product)
        load = next(
            s for s in nest.statements if isinstance(s, Load) and s.operand == number
        )
        operand = replace(nest.operands[number], array=output)
        read = replace(load, result=value, operand=len(nest.operands))
        statements: list[Statement] = []
        for s in nest.statements:
            if isinstance(s, Store) and nest.operands[s.operand].array is output:
                continue
            makes = not isinstance(s, Store) and s.result == value
            statements.append(read if makes else s)
        stores = [s for s in statements if isinstance(s, Store)]
        if not stores:
            self.dropped.add(position)
            return
        nest = replace(nest, operands=(*nest.operands, operand))
        kept = with_dependencies(statements, stores, through_reductions=True)
        self.steps[position] = NestStep(restrict(nest, kept), [])


def _factor_nest(nest: Nest, times: Value, alpha: float, result: Var) -> Nest:
    """Return the nest that stores ``alpha * times`` in the scalar array ``result``.

    ``times`` is a value of ``nest`` that is the same for all elements.
    """
    producer = next(
        s for s in nest.statements if not isinstance(s, Store) and s.result == times
    )
    statements = list(
        with_dependencies(nest.statements, [producer], through_reductions=True)
    )
    dtype = result.type.dtype
    number = Value(f"{times.name}_alpha", dtype)
    function = f"mul_{short_name(dtype)}"
    factors = (times, Constant(alpha, dtype))
    statements += [
        Compute(number, function, factors, "element", stage=0, cost=1),
        Store(len(nest.operands), number, "element", stage=0),
    ]
    stored = ArrayOperand(result, dtype, strides=(), offset=0, written=True)
    operands = (*nest.operands, stored)
    restricted = restrict(replace(nest, operands=operands), statements)
    # The factor is one number: the nest has no axes.
    return replace(
        restricted,
        axes=(),
        operands=tuple(replace(o, strides=()) for o in restricted.operands),
        statements=tuple(
            s if isinstance(s, Reduce) else replace(s, level="element", stage=0)
            for s in restricted.statements
        ),
        primitives=("mul",),
        reason="a number that a product is multiplied by",
    )
