"""Arithmetic of row elements where less than the scalar functions will do.

Divisions of many elements by one number multiply by its inverse and correct the result.
fp16 and bf16 values are computed in float32, but not to all of its bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeVar

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
_ROUGH: Final = {"div_f32": "divide", "sqrt_f32": "sqrt"}
T = TypeVar("T", Rows, Pipeline, Columns)


@dataclass
class RowArithmetic(CudaPrinter[T]):
    """Prints divisions by a number of the row, and half-precision arithmetic."""

    inverses: dict[str, str] = field(default_factory=dict[str, str])
    accumulators: int = 1
    widened: set[int] = field(default_factory=set[int])
    """Operands whose current vector is there in float32."""

    # Divisions of a row by a number of its own.

    def divided(
        self, body: Sequence[Statement], stores: Sequence[int], loads: Sequence[int]
    ) -> dict[str, str]:
        """The divisors of a stage that are the same for the row, and their inverses.

        None where the stage cannot be done again, with divisions, if some elements are
        too small or too large for a product with the inverse to be exact.
        """
        again = self.schedule.whole and self.schedule.lanes > 1 and stores
        whole = all(
            self.is_whole(s, self.schedule.lanes) and s.operand not in loads
            for s in body
            if isinstance(s, Store)
        )
        if not again or not whole or any(isinstance(s, Reduce) for s in body):
            return {}
        divisors = [self.divisor(s) for s in body if not self.is_half(s)]
        return {name: f"{name}_inverse" for name in divisors if name}

    def is_half(self, s: Statement) -> bool:
        """Whether ``s`` computes what the Program has in 16 bits."""
        return isinstance(s, Compute) and s.result.half

    def invert_halves(self, body: Sequence[Statement]) -> None:
        """Print the reciprocals of what half-precision values are divided by."""
        divisors = [self.divisor(s) for s in body if self.is_half(s)]
        for name in dict.fromkeys(filter(None, divisors)):
            inverse = f"f32(1), {name}"
            self.line(f"{name}_reciprocal = {self.divide_half()}({inverse})")

    def divisor(self, s: Statement) -> str:
        """The name of what ``s`` divides by, if it is the same for the row."""
        if not isinstance(s, Compute) or s.level == "outer" or s.function != "div_f32":
            return ""
        y = s.arguments[1]
        made = self.producers[y.name] if isinstance(y, Value) else None
        if made is None or not isinstance(y, Value):
            return ""
        once = isinstance(made, Reduce) or made.level == "outer"
        return self.name_of(y) if once else ""

    def compute(self, s: Compute) -> None:
        """Where an inverse is known, a division is a product and its correction.

        In half precision it is the product alone, and ``exp`` the approximate one: both
        are exact to more than 16 bits.
        """
        if self.fusing(s) is not None:
            return  # printed where it is added
        if self.fuse(s):
            return
        if is_half_exp(s):
            (x,) = (self.scalar(a) for a in s.arguments)
            self.line(f"{self.name_of(s.result)} = approximate_exp_f32({x})", s.source)
            return
        if s.function in _ROUGH and self.is_rough(s):
            rough = f"approximate_{_ROUGH[s.function]}_f32"
            arguments = ", ".join(map(self.scalar, s.arguments))
            self.line(f"{self.name_of(s.result)} = {rough}({arguments})", s.source)
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
        """The statements that read each value."""
        users: dict[str, list[Statement]] = {}
        for s in self.nest.statements:
            for value in uses(s):
                users.setdefault(value.name, []).append(s)
        return users

    def is_rough(self, s: Compute) -> bool:
        """Whether ``s`` is computed once a row, and only rounded results depend on it.

        That matters where a block has a multiprocessor alone, and waits for it.
        """
        if not isinstance(self.schedule, Pipeline) or s.level != "outer":
            return False
        users = self.users.get(s.result.name, [])
        rounded = (isinstance(u, Compute) and "round_" in u.function for u in users)
        return s.result.half or (bool(users) and all(rounded))

    def divide_half(self) -> str:
        """The function for a division once a row whose result is rounded to 16 bits."""
        if isinstance(self.schedule, Pipeline):
            return "approximate_divide_f32"
        return "div_f32"

    def fusing(self, s: Statement) -> Compute | Reduce | None:
        """The sum that alone needs ``s``, a half-precision product, or its other name.

        Both become one fused multiply-add, which rounds once less.
        """
        product = self.product_of(s.result) if isinstance(s, Compute) else None
        return None if product is None else self.sum_of(product.result)

    def sum_of(self, value: Value) -> Compute | Reduce | None:
        """The sum that alone needs ``value``, perhaps by another name."""
        readers = self.users.get(value.name, [])
        if len(readers) != 1:
            return None
        (user,) = readers
        if isinstance(user, Compute) and user.function == "identity_f32":
            return self.sum_of(user.result)
        if isinstance(user, Reduce):
            sums = user.function == "accumulate_add_f32" and self.accumulators == 1
            return user if sums else None
        if not isinstance(user, Compute) or not user.result.half:
            return None
        first = next((a for a in user.arguments if self.is_product(a)), None)
        return user if user.function == "add_f32" and first == value else None

    def is_product(self, x: Scalar) -> bool:
        """Whether ``x`` is a half-precision product that nothing else needs."""
        product = self.product_of(x)
        return product is not None and len(self.users[product.result.name]) == 1

    def product_of(self, x: Scalar) -> Compute | None:
        """The half-precision product that ``x`` is, perhaps by another name."""
        while isinstance(x, Value):
            made = self.producers[x.name]
            if not isinstance(made, Compute) or made.level != "element":
                return None
            if made.function in ("mul_f32", "square_f32"):
                return made if made.result.half else None
            if made.function != "identity_f32":
                return None
            (x,) = made.arguments
        return None

    def fuse(self, s: Compute | Reduce) -> bool:
        """Print ``s``, if it is a sum that alone needs a product, with that in it."""
        terms = (s.argument, s.result) if isinstance(s, Reduce) else s.arguments
        for k, x in enumerate(terms[:2]):
            product = self.product_of(x)
            if product is not None and self.fusing(product) is s:
                factors = product.arguments[0], product.arguments[-1]  # or its square
                given = ", ".join(map(self.scalar, (*factors, terms[1 - k])))
                self.line(f"{self.name_of(s.result)} = fma_rn_f32({given})", s.source)
                return True
        return False

    def accumulate(self, s: Reduce) -> None:
        if not self.fuse(s):
            super().accumulate(s)

    def extremes_of_halves(self, body: Sequence[Statement]) -> bool:
        """Print ``body`` if all that it does is to take maxima or minima of loads.

        16-bit values are then compared two at a time.
        """
        loads = {s.result: s for s in body if isinstance(s, Load)}
        found: list[str] = []
        if self.accumulators > 1 or not self.has_extremes_alone(body):
            return False
        for s in body:
            if not isinstance(s, Reduce):
                continue
            load = loads.get(s.argument) if isinstance(s.argument, Value) else None
            if load is None or not self.is_pair_of_halves(load):
                return False
            dtype = short_name(self.nest.operands[load.operand].dtype)
            kind, lanes = _EXTREMES[s.function], self.schedule.lanes
            extreme = f"{kind}_{dtype}x{lanes}"
            tile, place = self.staged_vector(load.operand)
            name = self.name_of(s.result)
            found.append(f"{name} = {extreme}({tile}, {place}, {name})")
        for text in found:
            self.line(text)
        return bool(found)

    def has_extremes_alone(self, body: Sequence[Statement]) -> bool:
        """Whether all that ``body`` does is to take extremes of what it loads."""
        reduces = [s for s in body if isinstance(s, Reduce)]
        only = len(reduces) + sum(isinstance(s, Load) for s in body) == len(body)
        return only and all(s.function in _EXTREMES for s in reduces)

    def is_pair_of_halves(self, s: Load) -> bool:
        """Whether ``s`` loads vectors of 16-bit values, two to a register."""
        dtype, lanes = self.nest.operands[s.operand].dtype, self.schedule.lanes
        return dtype in dtypes.HALF_PRECISION and lanes > 1 and self.is_whole(s, lanes)

    def staged_vector(self, operand: int) -> tuple[str, str]:
        """The registers of an operand's current vector, and where it begins there."""
        tile, place = self.staged[operand].removesuffix("]").split("[", 1)
        return tile, place.removesuffix("lane").removesuffix(" + ") or "0"

    def widen_halves(self, operands: Sequence[int]) -> None:
        """Convert 16-bit values of the current vector to float32.

        The row itself stays in 16 bits, two values to a register.
        """
        lanes = self.schedule.lanes
        for operand in operands:
            dtype = self.nest.operands[operand].dtype
            if dtype not in dtypes.HALF_PRECISION or lanes == 1:
                continue
            widen = f"widen_{short_name(dtype)}x{lanes}"
            tile, place = self.staged_vector(operand)
            wide = f"{tile.rsplit('_', 1)[0]}_wide"
            self.registers(wide, "f32", lanes)
            self.line(f"{widen}({tile}, {place}, {wide}, 0)")
            self.staged[operand] = f"{wide}[lane]"
            self.widened.add(operand)

    def widen_loaded(self, operand: int, text: str) -> str:
        return text if operand in self.widened else super().widen_loaded(operand, text)
