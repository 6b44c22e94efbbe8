"""Arithmetic of row elements that is cheaper than the scalar functions.

* Divisions of many elements by a number of the row multiply by its inverse and correct
  the result, which is exact for all but very small and very large elements.
* fp16 and bf16 values are computed in float32, but not to all of its bits: products
  with reciprocals, approximate functions, fused multiply-adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeVar

from typing_extensions import override

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.lowering.cuda.printer import CudaPrinter
from arrayfn.lowering.cuda.schedule import Columns, Pipeline, Rows
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

_EXTREMES: Final = {"accumulate_max_f32": "max", "accumulate_min_f32": "min"}
_APPROXIMATE: Final = {"div_f32": "divide", "sqrt_f32": "sqrt"}
T = TypeVar("T", Rows, Pipeline, Columns)


@dataclass
class RowArithmetic(CudaPrinter[T]):
    """Prints divisions by a number of the row, and half-precision arithmetic.

    A number of the row is a value that is the same for all elements of a row.
    """

    inverses: dict[str, str] = field(default_factory=dict[str, str])
    """The variables of divisors' inverses, by divisor, where divisions use them."""
    accumulators: int = 1
    """How many partial results a thread keeps of each reduction of the stage."""
    widened: set[int] = field(default_factory=set[int])
    """Operands whose current vector is in float32 registers."""

    # Divisions of a row by a number of its own.

    def row_divisors(
        self, body: Sequence[Statement], stores: Sequence[int], loads: Sequence[int]
    ) -> dict[str, str]:
        """The numbers of the row that a stage divides by: variables of their inverses.

        Empty if the stage cannot be repeated with true divisions, which it has to be if
        some elements are too small or too large for a product with the inverse to be
        exact. It can be if it only stores vectors, over none of what it loads.

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

    def invert_halves(self, body: Sequence[Statement]) -> None:
        """Define reciprocals of the numbers that fp16 or bf16 values are divided by.

        ``body`` are the stage's statements. Numbers of the row only.
        """
        divisors = [self.divisor(s) for s in body if self.is_half(s)]
        for name in dict.fromkeys(filter(None, divisors)):
            inverse = f"f32(1), {name}"
            self.line(f"{name}_reciprocal = {self.divide_half()}({inverse})")

    def divisor(self, s: Statement) -> str:
        """The variable of the number of the row that ``s`` divides by; else empty."""
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
        """Print ``s``; nothing if it is a product that a fused multiply-add contains.

        Where an inverse is known, a division is a product and its correction, and
        updates ``smallest`` and ``largest``, the magnitudes that are tested afterwards.
        In half precision it is the product alone, and ``exp`` the approximate one: both
        are exact to more than 16 bits.
        """
        if self.fma_of(s) is not None:
            return  # printed where it is added
        if self.print_fma(s):
            return
        if is_half_exp(s):
            (x,) = (self.scalar(a) for a in s.arguments)
            self.line(f"{self.name_of(s.result)} = approximate_exp_f32({x})", s.source)
            return
        if s.function in _APPROXIMATE and self.may_approximate(s):
            function = f"approximate_{_APPROXIMATE[s.function]}_f32"
            arguments = ", ".join(map(self.scalar, s.arguments))
            self.line(f"{self.name_of(s.result)} = {function}({arguments})", s.source)
            return
        divisor = self.divisor(s)
        inverse = self.inverses.get(divisor)
        if not divisor or (inverse is None and not s.result.half):
            super().compute(s)
            return
        x, y = (self.scalar(a) for a in s.arguments)
        if s.result.half:
            self.line(f"{self.name_of(s.result)} = {x} * {y}_reciprocal", s.source)
            return
        for name, function in (("smallest", "min"), ("largest", "max")):
            size = f"abs_f32({x})"
            bound = f"accumulate_{function}_f32"
            self.line(f"{name} = {bound}({name}, {size})")
        self.line(
            f"{self.name_of(s.result)} = divide_f32({x}, {y}, {inverse})", s.source
        )

    # Half precision.

    @cached_property
    def users(self) -> dict[str, list[Statement]]:
        """The statements that read each value, by its name."""
        users: dict[str, list[Statement]] = {}
        for s in self.nest.statements:
            for value in uses(s):
                users.setdefault(value.name, []).append(s)
        return users

    def may_approximate(self, s: Compute) -> bool:
        """Whether ``s`` is a number of the row that only fp16 or bf16 results need.

        Only in pipelines, where a multiprocessor's one block waits for such numbers.
        """
        if not isinstance(self.schedule, Pipeline) or s.level != "outer":
            return False
        users = self.users.get(s.result.name, [])
        rounded = (isinstance(u, Compute) and "round_" in u.function for u in users)
        return s.result.half or (bool(users) and all(rounded))

    def divide_half(self) -> str:
        """The function that divides numbers of the row in half precision."""
        if isinstance(self.schedule, Pipeline):
            return "approximate_divide_f32"
        return "div_f32"

    def fma_of(self, s: Statement) -> Compute | Reduce | None:
        """The addition that contains ``s``, a half-precision product, as an FMA.

        None if ``s`` is printed by itself. An FMA (fused multiply-add) rounds once less
        than the two.
        """
        product = self.product_of(s.result) if isinstance(s, Compute) else None
        return None if product is None else self.sum_of(product.result)

    def sum_of(self, value: Value) -> Compute | Reduce | None:
        """The addition that is the only reader of ``value``, through identities.

        None if there is no such addition, or if it adds the product of its other
        operand.
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
        """The half-precision product that computes ``x``, through identities."""
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
        """Print the addition ``s`` and its product as an FMA.

        Returns False, and prints nothing, if it adds no half-precision product.
        """
        terms = (s.argument, s.result) if isinstance(s, Reduce) else s.arguments
        for k, x in enumerate(terms[:2]):
            product = self.product_of(x)
            if product is not None and self.fma_of(product) is s:
                factors = product.arguments[0], product.arguments[-1]  # or its square
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
        """Print ``body`` for the current vector, if it only takes extremes of 16 bits.

        ``body`` are a stage's statements. Elements are compared two at a time. Returns
        whether ``body`` was printed.
        """
        loads = {s.result: s for s in body if isinstance(s, Load)}
        lines: list[str] = []
        if self.accumulators > 1 or not self.takes_extremes_alone(body):
            return False
        for s in body:
            if not isinstance(s, Reduce):
                continue
            load = loads.get(s.argument) if isinstance(s.argument, Value) else None
            if load is None or not self.is_half_vector(load):
                return False
            dtype = short_name(self.nest.operands[load.operand].dtype)
            kind, lanes = _EXTREMES[s.function], self.schedule.lanes
            extreme = f"{kind}_{dtype}x{lanes}"
            tile, register = self.staged_vector(load.operand)
            name = self.name_of(s.result)
            lines.append(f"{name} = {extreme}({tile}, {register}, {name})")
        for text in lines:
            self.line(text)
        return bool(lines)

    def takes_extremes_alone(self, body: Sequence[Statement]) -> bool:
        """Whether ``body`` only loads, and takes maxima and minima of what it loads."""
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
        """The registers of an operand's current vector, and the index of the first.

        Both are expressions of the kernel.
        """
        tile, element = self.staged[operand].removesuffix("]").split("[", 1)
        return tile, element.removesuffix("lane").removesuffix(" + ") or "0"

    def widen_vectors(self, operands: Sequence[int]) -> None:
        """Convert the current vectors of fp16 and bf16 operands to float32 registers.

        Elements are read from there. The row itself stays in 16 bits.
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
        return text if operand in self.widened else super().widen_loaded(operand, text)
