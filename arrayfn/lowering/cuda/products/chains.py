"""Finds equations that the epilogue of a product computes: fusion leaves them alone.

Fusion would recompute a sum with a product in each kernel that reads it. As the
product's epilogue, the sum is an array in memory, which other kernels read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arrayfn import dtypes
from arrayfn.ir import Atom, Equation, Literal, Program, Var
from arrayfn.lowering.fusion.groups import is_fusible, recompute_cost
from arrayfn.passes.reads import Read
from arrayfn.primitives.base import Contraction, primitive_of

Chain = tuple[Equation, ...]


def sums_with_products(program: Program, reads: Mapping[Var, Read]) -> list[Chain]:
    """Find the chains of equations from a product to its sum with an array.

    ``x @ w``, ``* 0.1``, ``+ c`` is one; the chain has the equations after ``x @ w``.
    Each of them but the last is read only by the next one. Scalings, negations, biases
    and comparisons with 0 between the product and the sum are in the chain, too.
    ``reads`` says where each Var of ``program`` is read from: an array, or a view of
    one.
    """
    return _Search(program, reads).run()


class _Search:
    """Finds the chains of a Program; see ``sums_with_products``.

    ``reads`` says where each Var is read from. ``users`` has the equations that read an
    Atom, and None for an output of the Program. ``found`` has the chain that each
    equation is in.
    """

    def __init__(self, program: Program, reads: Mapping[Var, Read]) -> None:
        self.program = program
        self.reads = reads
        self.definitions = program.definitions()
        self.users: dict[Atom, list[Equation | None]] = {}
        for equation in program.equations:
            for atom in dict.fromkeys(equation.inputs):
                self.users.setdefault(atom, []).append(equation)
        for atom in program.outputs:
            self.users.setdefault(atom, []).append(None)
        self.found: dict[Equation, Chain] = {}

    def run(self) -> list[Chain]:
        """Find the chains of all products of the Program."""
        for equation in self.program.equations:
            primitive = primitive_of(equation)
            if isinstance(primitive.kernel, Contraction):
                chain = self.chain(equation)
                if chain:
                    self.found.update(dict.fromkeys(chain, chain))
        return list(dict.fromkeys(self.found.values()))

    def chain(self, product: Equation) -> Chain:
        """Find the chain after ``product``; empty if no array is added to it.

        Equations are followed as long as each is the only reader of the one before, and
        is a term that the epilogue does not have yet. The chain ends with the sum, or
        with a bias or maximum that directly continues it.
        """
        links: list[Equation] = []
        value, end = product.outputs[0], 0
        if value.type.dtype not in dtypes.INEXACT or not value.type.size:
            return ()
        terms: set[str] = set()
        while True:
            users = self.users.get(value, [])
            user = users[0] if len(users) == 1 else None
            # The end: an output of the Program, an equation of an earlier chain, or the
            # activation, which must be last.
            if user is None or user in self.found or "max" in terms:
                break
            # Each term may occur once, but scalings several times, before all others.
            kind = self.kind(user, value)
            if not kind or kind in terms or (kind == "scaled" and terms - {"scaled"}):
                break
            if kind != "scaled":
                terms.add(kind)
            links.append(user)
            if "added" in terms:
                end = len(links)  # a chain without a sum is of no use
            value = user.outputs[0]
        return tuple(links[:end])

    def kind(self, equation: Equation, value: Var) -> str:
        """Classify ``equation``, which uses ``value``, as a term of an epilogue.

        Returns ``"scaled"`` for a product with a number, ``"added"`` for a sum with an
        array, ``"bias"`` for a sum with a row, ``"max"`` for a maximum with 0, or an
        empty string if an epilogue has no such term.
        """
        name, output = equation.primitive.name, equation.outputs[0].type
        same = (output.shape, output.dtype) == (value.type.shape, value.type.dtype)
        if not same or not is_fusible(equation):
            return ""
        if name == "neg":
            return "scaled"
        others = [a for a in equation.inputs if a is not value]
        if len(others) != 1:
            return ""
        (other,) = others
        if isinstance(other, Literal):
            is_zero = name == "max" and other.value == 0
            return "scaled" if name == "mul" else "max" if is_zero else ""
        assert isinstance(other, Var)
        if name == "mul" and not other.type.shape and other.type.dtype == output.dtype:
            return "scaled"
        if name not in ("add", "sub") or other.type.dtype != output.dtype:
            return ""
        if other.type.shape == output.shape and self.is_array(other):
            return "added"
        return "bias" if name == "add" and self.is_row(other, output.shape) else ""

    def is_array(self, x: Var) -> bool:
        """Whether ``x`` is a whole array in memory, or such an array times a number."""
        if not self.reads[x].is_identity:
            return False
        # Values with a recompute cost are not stored: fusion computes them in readers.
        # What a chain computes is stored by its product.
        maker = self.definitions.get(x)
        if maker is None or maker in self.found or recompute_cost(maker) is None:
            return True
        factor, array = maker.inputs[0], maker.inputs[-1]
        if isinstance(array, Literal):
            factor, array = array, factor
        is_scaled = maker.primitive.name == "mul" and isinstance(factor, Literal)
        if not is_scaled or not isinstance(array, Var):
            return False
        inner = self.definitions.get(array)
        in_memory = (
            inner is None or recompute_cost(inner) is None or inner in self.found
        )
        return in_memory and self.reads[array].is_identity

    def is_row(self, x: Var, shape: tuple[Any, ...]) -> bool:
        """Whether ``x`` is one row that is broadcast to ``shape``."""
        if x.type.dtype in dtypes.COMPLEX:
            return False
        # The axes of ``x`` along which different elements of an array are read.
        axes = [m.axis for m in self.reads[x].axes if m.axis is not None]
        return x.type.shape == shape and axes == [len(shape) - 1]
