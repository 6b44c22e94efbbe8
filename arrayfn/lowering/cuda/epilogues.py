"""What follows a product becomes a part of it: cuBLASLt's epilogues.

A kernel that scales a product, adds an array or a row to it and takes the greater of it
and 0, or a beginning of such a chain, is folded into the product:

    activation(alpha * product + beta * added + bias)

All of it is computed as the product is summed, and rounded once. So the product itself
is never written: a residual stream is added to, and parameters take their step of
descent, where their gradient is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.ir import Var
from arrayfn.lowering.cuda.destinations import (
    AxisStrides,
    Producer,
    Product,
    is_whole,
    strides_along,
)
from arrayfn.lowering.kernel_ir import (
    Compute,
    Constant,
    Load,
    Nest,
    Scalar,
    Statement,
    Store,
    Value,
    uses,
)
from arrayfn.lowering.libraries.calls import LibraryCall, Place
from arrayfn.lowering.split import needed, restrict
from arrayfn.lowering.steps import NestStep, PlanStep

_WITH_BIAS: Final = frozenset(
    (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
)


@dataclass(frozen=True)
class Added:
    """A matrix, or one for each of a batch, that is added: rows ``leading`` apart."""

    place: Place
    leading: int
    batch_stride: int


@dataclass(frozen=True)
class Epilogue:
    """``activation(alpha * product + beta * added + bias)``."""

    alpha: float = 1.0
    beta: float = 0.0
    added: Added | None = None
    bias: Place | None = None
    activation: str = ""

    def of(self, call: LibraryCall, output: Var) -> LibraryCall:
        """``call`` with this behind it, into ``output``."""
        words, reads, integers = [call.provider], dict(call.reads), dict(call.integers)
        if self.alpha != 1:
            words.append("scaled")
            integers["alpha"] = bits_of(self.alpha)
        if self.added is not None:
            words.append("added")
            reads["added"] = self.added.place
            integers["beta"] = bits_of(self.beta)
            integers["ld_added"] = self.added.leading
            integers["batch_stride_added"] = self.added.batch_stride
        if self.bias is not None:
            words.append("bias")
            reads["bias"] = self.bias
        if self.activation:
            words.append(self.activation)
        return replace(
            call,
            provider="_".join(words),
            reads=reads,
            writes={"c": Place(output)},
            integers=integers,
        )


def bits_of(factor: float) -> int:
    """A factor as an integer argument: the bits of a float64."""
    return int(np.float64(factor).view(np.int64))


def fold_epilogues(
    steps: Sequence[PlanStep],
    producers: Mapping[int, Producer],
    outputs: Iterable[Var],
    of: Callable[[Var], Var],
) -> tuple[list[PlanStep], dict[int, Producer]]:
    """``steps`` without what can be a part of a product; the products that changed.

    ``producers`` are at the positions of ``steps``, and so are the changed ones. Arrays
    in ``outputs`` are needed after the steps. ``of`` says where an array is stored.
    """
    folding = _Folding(list(steps), set(outputs), of)
    for position, producer in producers.items():
        if isinstance(producer, Product):
            folding.fold(position, producer.made)
    return folding.result()


class _Folding:
    """Steps, some of which products have taken over."""

    def __init__(
        self, steps: list[PlanStep], needed: set[Var], of: Callable[[Var], Var]
    ) -> None:
        self.steps = steps
        self.needed = needed
        self.of = of
        self.users: dict[Var, list[int]] = {}
        for position, step in enumerate(steps):
            for root in dict.fromkeys(of(var) for var in step.arrays()):
                self.users.setdefault(root, []).append(position)
        self.moved: dict[int, tuple[int, LibraryCall]] = {}  # from where, before what
        self.dropped: set[int] = set()

    def result(self) -> tuple[list[PlanStep], dict[int, Producer]]:
        """The steps that are left, and the products among them that changed."""
        steps: list[PlanStep] = []
        changed: dict[int, Producer] = {}
        for position, step in enumerate(self.steps):
            for origin, (before, call) in self.moved.items():
                if before == position:
                    changed[len(steps)] = Product(call)
                    steps.append(self.steps[origin])
            if position not in self.dropped:
                steps.append(step)
        return steps, changed

    def fold(self, position: int, call: LibraryCall) -> None:
        """Make what follows the product at ``position`` a part of it, if it can be."""
        product = call.writes["c"].array
        places = [k for k in self.users.get(product, ()) if k != position]
        if product in self.needed or not places or places[0] < position:
            return
        nests = [self.nest_at(k, product) for k in places]
        if None in nests:
            return
        chains = [
            _Chain(n, self.operand_of(n, product), call).links()
            for n in nests
            if n is not None
        ]
        common = 0
        while all(len(chain) > common for chain in chains) and all(
            chain[common][0] == chains[0][common][0] for chain in chains
        ):
            common += 1
        for last in range(common - 1, -1, -1):
            epilogue = chains[0][last][0]
            ends = [chain[last][1] for chain in chains]
            if self.take_over(position, call, epilogue, places, ends):
                return

    def nest_at(self, position: int, product: Var) -> Nest | None:
        """The nest there, if it reads ``product`` and that once."""
        step = self.steps[position]
        if not isinstance(step, NestStep) or step.partials or position in self.dropped:
            return None
        touched = [o for o in step.nest.operands if self.of(o.array) is product]
        is_read = len(touched) == 1 and not touched[0].written
        return step.nest if is_read else None

    def take_over(
        self,
        position: int,
        call: LibraryCall,
        epilogue: Epilogue,
        places: Sequence[int],
        ends: Sequence[Value],
    ) -> bool:
        """Have the product compute the values ``ends`` of the nests at ``places``.

        They are the same values. That must save memory: one of the nests stores them,
        or they are the sum of arrays that otherwise each nest reads.
        """
        product = call.writes["c"].array
        stores = [
            (place, store)
            for place, end in zip(places, ends, strict=True)
            if (store := self.store_of(place, end, product)) is not None
        ]
        if len(stores) > 1 or not (stores or epilogue.added):
            return False
        output = Var(product.type)
        if stores:
            ((where, store),) = stores
            output = self.nest(where).operands[store.operand].array
            between = self.steps[position + 1 : where]
            if any(self.of(v) is self.of(output) for s in between for v in s.arrays()):
                return False
        made = epilogue.of(call, output)
        if self.overwritten(self.steps[position + 1 : places[0]], call):
            return False
        for place, end in zip(places, ends, strict=True):
            self.read_instead(place, end, product, output)
        self.dropped.add(position)
        self.moved[position] = places[0], made
        return True

    def operand_of(self, nest: Nest, array: Var) -> int:
        """The operand of ``nest`` that has the memory of ``array``."""
        return next(k for k, o in enumerate(nest.operands) if self.of(o.array) is array)

    def nest(self, position: int) -> Nest:
        step = self.steps[position]
        assert isinstance(step, NestStep)
        return step.nest

    def store_of(self, position: int, value: Value, product: Var) -> Store | None:
        """Where the nest stores ``value`` as the product would, if it does."""
        nest = self.nest(position)
        lies = nest.operands[self.operand_of(nest, product)]
        for s in nest.statements:
            if isinstance(s, Store) and s.value == value:
                to = nest.operands[s.operand]
                same = (to.strides, to.offset, to.dtype) == (
                    lies.strides,
                    lies.offset,
                    lies.dtype,
                )
                if same and not s.at and s.where is None:
                    return s
        return None

    def overwritten(self, steps: Sequence[PlanStep], call: LibraryCall) -> bool:
        """Whether ``steps``, behind which the product moves, write where it reads."""
        read = {self.of(place.array) for place in call.reads.values()}
        return any(self.of(var) in read for step in steps for var in step.writes)

    def read_instead(
        self, position: int, value: Value, product: Var, output: Var
    ) -> None:
        """Have the nest read ``value`` from ``output``; drop it if it does no more."""
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
        kept = needed(statements, stores, through_reductions=True)
        self.steps[position] = NestStep(restrict(nest, kept), [])


class _Chain:
    """Follows the statements of a nest from the product on, while they may be folded.

    The product is operand ``number``. Each link but the last is used by the next one
    alone.
    """

    def __init__(self, nest: Nest, number: int, call: LibraryCall) -> None:
        self.nest = nest
        self.call = call
        self.dtype = nest.operands[number].dtype
        self.suffix = short_name(dtypes.compute_dtype(self.dtype))
        self.lies = nest.operands[number]
        self.made = {s.result: s for s in nest.statements if not isinstance(s, Store)}
        self.users: dict[Value, list[Statement]] = {}
        for s in nest.statements:
            for value in dict.fromkeys(uses(s)):
                self.users.setdefault(value, []).append(s)
        self.loads = [
            s for s in nest.statements if isinstance(s, Load) and s.operand == number
        ]

    def links(self) -> list[tuple[Epilogue, Value]]:
        """What the product can be followed by, shortest first, and what it is then."""
        found: list[tuple[Epilogue, Value]] = []
        if self.dtype not in dtypes.INEXACT or len(self.loads) != 1 or self.loads[0].at:
            return found
        if self.loads[0].level != "element" or not self.is_whole():
            return found
        value, epilogue = self.loads[0].result, Epilogue()
        while True:
            following = self.users.get(value, [])
            if len(following) != 1 or not isinstance(following[0], Compute):
                return found
            s = following[0]
            is_rounding = s.function == f"round_{self.suffix}_{short_name(self.dtype)}"
            changed = epilogue if is_rounding else self.after(s, value, epilogue)
            if changed is None:
                return found
            value, epilogue = s.result, changed
            if epilogue != Epilogue():
                found.append((epilogue, value))

    def after(self, s: Compute, value: Value, e: Epilogue) -> Epilogue | None:
        """``e`` with what ``s`` does with ``value``; None if it is no part of one."""
        operation = s.function.removesuffix(f"_{self.suffix}")
        if s.function == operation or e.activation:
            return None
        is_plain = e.added is None and e.bias is None
        if operation == "neg":
            return replace(e, alpha=-e.alpha) if is_plain else None
        if len(s.arguments) != 2 or s.arguments[0] == s.arguments[1]:
            return None
        is_first = s.arguments[0] == value
        other = s.arguments[1 if is_first else 0]
        if operation == "mul" and isinstance(other, Constant) and is_plain:
            factor = _factor(other)
            return None if factor is None else replace(e, alpha=e.alpha * factor)
        if operation == "add":
            return self.plus(other, e, 1.0)
        if operation == "sub" and is_first:
            return self.plus(other, e, -1.0)
        if operation == "sub" and is_plain:
            return self.plus(other, replace(e, alpha=-e.alpha), 1.0)
        if operation == "max" and isinstance(other, Constant) and other.value == 0:
            fits = self.dtype in _WITH_BIAS
            return replace(e, activation="relu") if fits else None
        return None

    def plus(self, other: Scalar, e: Epilogue, factor: float) -> Epilogue | None:
        """``e`` plus ``factor * other``: a row, or an array, perhaps scaled."""
        made = self.made.get(other) if isinstance(other, Value) else None
        if isinstance(made, Compute) and made.function == f"mul_{self.suffix}":
            # What is added may be scaled, as parameters are by a decay.
            first, second = made.arguments
            if not isinstance(second, Constant):
                first, second = second, first
            scale = _factor(second) if isinstance(second, Constant) else None
            if scale is None or not isinstance(first, Value):
                return None
            factor, made = factor * scale, self.made.get(first)
        if not isinstance(made, Load) or made.at or made.level != "element":
            return None
        operand = self.nest.operands[made.operand]
        strides = self.strides(operand.strides)
        if strides is None or operand.dtype != self.dtype or operand.written:
            return None
        place, p = Place(operand.array, operand.offset), self.call.integers
        batch, row, column = strides
        if p["n"] > 1 and column != 1:
            return None
        if (row == 0 and p["m"] > 1) or (p["m"] == 1 and e.added is not None):
            is_row = p["batch"] == 1 and self.dtype in _WITH_BIAS
            if e.bias is not None or factor != 1 or not is_row:
                return None
            return replace(e, bias=place)
        leading = p["n"] if p["m"] == 1 else row
        if e.added is not None or leading < p["n"] or batch < 0:
            return None
        return replace(e, added=Added(place, leading, batch), beta=factor)

    def axes(self, strides: Sequence[int]) -> list[AxisStrides]:
        """The nest's axes, in the product and in an operand with these strides."""
        extents = [axis.extent for axis in self.nest.axes]
        return list(zip(extents, self.lies.strides, strides, strict=True))

    def is_whole(self) -> bool:
        """Whether the nest reads all of the product, each element once."""
        axes = self.axes(self.lies.strides)
        return not self.lies.offset and is_whole(axes, self.lies.array.type.size)

    def strides(self, own: Sequence[int]) -> tuple[int, ...] | None:
        """Strides of an operand seen as the product's [batch, m, n], if it has any."""
        p = self.call.integers
        return strides_along(self.axes(own), (p["batch"], p["m"], p["n"]))


def _factor(constant: Constant) -> float | None:
    """A real, finite factor."""
    value = constant.value
    if isinstance(value, complex) or not np.isfinite(value):
        return None
    return float(value)
