"""Arithmetic of row elements that is cheaper than the scalar functions.

* Divisions of many elements by a *row scalar*, a value that is the same for all
  elements of a row, multiply by its inverse and correct the result. That is exact for
  all but very small and very large elements.
* fp16 and bf16 values are computed in float32, but not to all of its bits: products
  with reciprocals, approximate functions, fused multiply-adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from typing import Final

from typing_extensions import override

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.row_loops import RowLoops, T
from arrayfn.lowering.cuda.schedule import Pipeline
from arrayfn.lowering.cuda.stage_plan import is_half_exp
from arrayfn.lowering.kernel_ir import (
    Compute,
    Load,
    Reduce,
    Scalar,
    Statement,
    Store,
    Value,
    uses,
)
from arrayfn.records import record

_EXTREMES: Final = {"accumulate_max_f32": "max", "accumulate_min_f32": "min"}
_APPROXIMATE: Final = {"div_f32": "divide", "sqrt_f32": "sqrt"}


@record
class RowArithmetic(RowLoops[T]):
    """Prints divisions by row scalars, and half-precision arithmetic."""

    inverses: dict[str, str] = field(default_factory=dict[str, str])
    """The variable of each divisor's inverse, in a loop that divides by row scalars."""
    accumulators: int = 1
    """How many partial results a thread has for each reduction of the stage."""
    widened: set[int] = field(default_factory=set[int])
    """Operands whose current vector is in float32 registers."""

    # Divisions of a row's elements by a row scalar.

    def row_divisors(
        self, body: Sequence[Statement], stores: Sequence[int], loads: Sequence[int]
    ) -> dict[str, str]:
        """Return the row scalars that a stage divides by, and variables for inverses.

        ``{"e": "e_inverse"}`` for a softmax. Empty if the stage cannot be printed twice
        (see ``StagedPrinter.repeat_with_divisions``): it must only store vectors, over
        none of what it loads.

        Args:
            body: The stage's statements.
            stores: Numbers of the operands that it stores as vectors.
            loads: Numbers of the operands that it loads as vectors.
        """
        schedule = self.schedule
        has_vectors = schedule.register_resident and schedule.lanes > 1 and stores
        can_repeat = all(
            self.is_vectorized(s, schedule.lanes) and s.operand not in loads
            for s in body
            if isinstance(s, Store)
        )
        if (
            not has_vectors
            or not can_repeat
            or any(isinstance(s, Reduce) for s in body)
        ):
            return {}
        divisors = [self.divisor(s) for s in body if not self.is_half(s)]
        return {name: f"{name}_inverse" for name in divisors if name}

    def is_half(self, s: Statement) -> bool:
        """Whether ``s`` computes a value that is fp16 or bf16 in the Program."""
        return isinstance(s, Compute) and s.result.half

    def define_reciprocals(self, body: Sequence[Statement]) -> None:
        """Define reciprocals of row scalars that half-precision values divide by.

        Prints, for ``x / f`` in bfloat16, where f is a row scalar:

            f_reciprocal = div_f32(f32(1), f)

        ``body`` are the stage's statements.
        """
        divisors = [self.divisor(s) for s in body if self.is_half(s)]
        for name in dict.fromkeys(filter(None, divisors)):
            self.line(f"{name}_reciprocal = {self.divide_half()}(f32(1), {name})")

    def divisor(self, s: Statement) -> str:
        """Return the variable of the row scalar that ``s`` divides by; else "".

        A row scalar is a result of a reduction, or is computed once a row.
        """
        if not isinstance(s, Compute) or s.level == "outer" or s.function != "div_f32":
            return ""
        y = s.arguments[1]
        if not isinstance(y, Value):
            return ""
        producer = self.producers[y.name]
        is_of_row = isinstance(producer, Reduce) or producer.level == "outer"
        return self.name_of(y) if is_of_row else ""

    @override
    def compute(self, s: Compute) -> None:
        """Print ``s``, in a cheaper form where there is one.

        A product that is printed with its sum, as a fused multiply-add, is left out.
        Divisions and half-precision functions have cheaper expressions.
        """
        if self.fma_of(s) is not None:
            return  # the addition prints it
        if self.print_fma(s):
            return
        text = self.cheaper_expression(s)
        if text is None:
            super().compute(s)
        else:
            self.line(f"{self.name_of(s.result)} = {text}", s.source)

    def cheaper_expression(self, s: Compute) -> str | None:
        """Return a cheaper expression for what ``s`` computes; None if there is none.

        * ``approximate_exp_f32(x)`` for an ``exp`` that is rounded to 16 bits.
        * ``approximate_sqrt_f32(x)`` and ``approximate_divide_f32(x, y)`` for row
          scalars that only results of 16 bits need.
        * ``x * e_reciprocal`` for ``x / e`` that is rounded to 16 bits.
        * ``divide_f32(x, e, e_inverse)`` for other divisions by a row scalar. Before
          it, these lines update the ``smallest`` and ``largest`` magnitude of x:

            smallest = accumulate_min_f32(smallest, abs_f32(x))
            largest = accumulate_max_f32(largest, abs_f32(x))
        """
        if is_half_exp(s):
            return f"approximate_exp_f32({self.scalar(s.arguments[0])})"
        if s.function in _APPROXIMATE and self.may_approximate(s):
            arguments = ", ".join(map(self.scalar, s.arguments))
            return f"approximate_{_APPROXIMATE[s.function]}_f32({arguments})"
        divisor = self.divisor(s)
        if not divisor or not (s.result.half or divisor in self.inverses):
            return None
        x = self.scalar(s.arguments[0])
        if s.result.half:
            return f"{x} * {divisor}_reciprocal"
        for name, function in (("smallest", "min"), ("largest", "max")):
            self.line(f"{name} = accumulate_{function}_f32({name}, abs_f32({x}))")
        return f"divide_f32({x}, {divisor}, {self.inverses[divisor]})"

    # Half precision.

    @cached_property
    def users(self) -> dict[str, list[Statement]]:
        """The statements that read each value, by the value's name."""
        users: dict[str, list[Statement]] = {}
        for s in self.nest.statements:
            for value in uses(s):
                users.setdefault(value.name, []).append(s)
        return users

    def may_approximate(self, s: Compute) -> bool:
        """Return whether ``s`` is a row scalar that only fp16 or bf16 results need.

        Always False outside of pipelines. A pipeline has one block a multiprocessor,
        which waits for such numbers.
        """
        if not isinstance(self.schedule, Pipeline) or s.level != "outer":
            return False
        users = self.users.get(s.result.name, [])
        rounded = (isinstance(u, Compute) and "round_" in u.function for u in users)
        return s.result.half or (bool(users) and all(rounded))

    def divide_half(self) -> str:
        """Return the function that divides row scalars for fp16 and bf16 results.

        All warps of a pipeline's block wait for such a number: it is approximated.
        """
        if isinstance(self.schedule, Pipeline):
            return "approximate_divide_f32"
        return "div_f32"

    def fma_of(self, s: Statement) -> Compute | Reduce | None:
        """Return the addition that is printed with the product ``s`` as one FMA.

        A fused multiply-add (FMA) rounds once less than a product and a sum. None if
        ``s`` is no half-precision product, or has to be printed by itself.
        """
        product = self.product_of(s.result) if isinstance(s, Compute) else None
        return None if product is None else self.sum_of(product.result)

    def sum_of(self, value: Value) -> Compute | Reduce | None:
        """Return the addition that is the only reader of the product ``value``.

        Identities in between are followed. None if there is no such addition. Of two
        products that are added, only the first becomes part of the fused multiply-add.
        A reduction counts if it has one accumulator.
        """
        readers = self.users.get(value.name, [])
        if len(readers) != 1:
            return None
        (user,) = readers
        if isinstance(user, Compute) and user.function == "identity_f32":
            return self.sum_of(user.result)
        if isinstance(user, Reduce):
            is_sum = user.function == "accumulate_add_f32" and self.accumulators == 1
            return user if is_sum else None
        if not isinstance(user, Compute) or not user.result.half:
            return None
        first = next((a for a in user.arguments if self.is_product(a)), None)
        return user if user.function == "add_f32" and first == value else None

    def is_product(self, x: Scalar) -> bool:
        """Whether ``x`` is a half-precision product with one reader."""
        product = self.product_of(x)
        return product is not None and len(self.users[product.result.name]) == 1

    def product_of(self, x: Scalar) -> Compute | None:
        """Return the half-precision product that computes ``x``, through identities.

        None if ``x`` is computed in another way, or once a row.
        """
        while isinstance(x, Value):
            producer = self.producers[x.name]
            if not isinstance(producer, Compute) or producer.level != "element":
                return None
            if producer.function in ("mul_f32", "square_f32"):
                return producer if producer.result.half else None
            if producer.function != "identity_f32":
                return None
            (x,) = producer.arguments
        return None

    def print_fma(self, s: Compute | Reduce) -> bool:
        """Print the addition ``s`` and the product that it adds as one FMA.

        Prints, for ``j = j + g * g``: ``j = fma_rn_f32(g, g, j)``. Returns False, and
        prints nothing, if ``s`` adds no half-precision product.
        """
        terms = (s.argument, s.result) if isinstance(s, Reduce) else s.arguments
        for k, x in enumerate(terms[:2]):
            product = self.product_of(x)
            if product is not None and self.fma_of(product) is s:
                # The other term is number ``1 - k``. A square has one argument, which
                # is both factors.
                factors = product.arguments[0], product.arguments[-1]
                arguments = ", ".join(map(self.scalar, (*factors, terms[1 - k])))
                text = f"{self.name_of(s.result)} = fma_rn_f32({arguments})"
                self.line(text, s.source)
                return True
        return False

    @override
    def accumulate(self, s: Reduce) -> None:
        """Print the accumulation of an element, as an FMA if it is a product."""
        if not self.print_fma(s):
            super().accumulate(s)

    def print_half_extremes(self, body: Sequence[Statement]) -> bool:
        """Print ``body``, a stage's statements, if it only takes extremes of 16 bits.

        Returns whether it was printed. Prints, for the maximum of a vector of 8
        float16: ``a = max_f16x8(x_tile, 0, a)``, which compares two elements at a time.
        """
        if self.accumulators > 1 or not self.only_takes_extremes(body):
            return False
        loads = {s.result: s for s in body if isinstance(s, Load)}
        lines: list[str] = []
        for s in (s for s in body if isinstance(s, Reduce)):
            load = loads.get(s.argument) if isinstance(s.argument, Value) else None
            if load is None or not self.is_half_vector(load):
                return False
            dtype = short_name(self.nest.operands[load.operand].dtype)
            extreme = f"{_EXTREMES[s.function]}_{dtype}x{self.schedule.lanes}"
            tile, register = self.staged_vector(load.operand)
            name = self.name_of(s.result)
            lines.append(f"{name} = {extreme}({tile}, {register}, {name})")
        for text in lines:
            self.line(text)
        return bool(lines)

    def only_takes_extremes(self, body: Sequence[Statement]) -> bool:
        """Whether ``body`` only loads elements and computes their extremes."""
        reduces = [s for s in body if isinstance(s, Reduce)]
        only = len(reduces) + sum(isinstance(s, Load) for s in body) == len(body)
        return only and all(s.function in _EXTREMES for s in reduces)

    def is_half_vector(self, s: Load) -> bool:
        """Whether ``s`` loads vectors of fp16 or bf16, two elements to a register."""
        dtype, lanes = self.nest.operands[s.operand].dtype, self.schedule.lanes
        return (
            dtype in dtypes.HALF_PRECISION
            and lanes > 1
            and self.is_vectorized(s, lanes)
        )

    def staged_vector(self, operand: int) -> tuple[str, str]:
        """Return where an operand's current vector is: ``("x_tile", "vector * 8")``.

        The first is the name of the register array, the second the index of the
        vector's first element there. They are taken from the text of an element,
        ``x_tile[vector * 8 + lane]``.
        """
        tile, element = self.staged[operand].removesuffix("]").split("[", 1)
        return tile, element.removesuffix("lane").removesuffix(" + ") or "0"

    def widen_vectors(self, operands: Sequence[int]) -> None:
        """Convert the current vectors of fp16 and bf16 operands to float32 registers.

        Elements are read from there; the row itself stays in 16 bits. Prints, for
        float16:

            x_wide = registers_f32(8)
            widen_f16x8(x_tile, vector * 8, x_wide, 0)
        """
        lanes = self.schedule.lanes
        for operand in operands:
            dtype = self.nest.operands[operand].dtype
            if dtype not in dtypes.HALF_PRECISION or lanes == 1:
                continue
            widen = f"widen_{short_name(dtype)}x{lanes}"
            tile, register = self.staged_vector(operand)
            wide = f"{tile.rsplit('_', 1)[0]}_wide"
            self.registers(wide, "f32", lanes)
            self.line(f"{widen}({tile}, {register}, {wide}, 0)")
            self.staged[operand] = f"{wide}[lane]"
            self.widened.add(operand)

    @override
    def widen_loaded(self, operand: int, text: str) -> str:
        """Return ``text`` as it is if the operand's vector is in float32 already."""
        return text if operand in self.widened else super().widen_loaded(operand, text)
