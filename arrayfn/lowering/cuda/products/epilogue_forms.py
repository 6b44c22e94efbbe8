"""Matches the statements of a nest with the epilogues that cuBLASLt can compute.

    activation(alpha * product + beta * added + bias)

A nest that loads a product and continues with ``0.1 * product + c`` begins with such an
epilogue: ``EpilogueMatcher`` follows its statements as far as cuBLASLt can compute
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from arrayfn import dtypes
from arrayfn.dtypes import short_name
from arrayfn.ir import Var
from arrayfn.lowering.cuda.destinations import (
    AxisStrides,
    covers_source,
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
from arrayfn.lowering.libraries.calls import LibraryCall, Pointer
from arrayfn.lowering.split import with_dependencies
from arrayfn.records import frozen


@frozen
class Added:
    """A matrix, or one for each product of a batch, that is added to the product.

    Args:
        place: Where the matrix begins in memory.
        leading: Elements from one of its rows to the next.
        batch_stride: Elements from one matrix to the next.
    """

    place: Pointer
    leading: int
    batch_stride: int


@frozen
class Epilogue:
    """The terms of ``activation(alpha * product + beta * added + bias)``.

    Args:
        alpha: The constant factor of the product.
        times: A scalar value of the nest, such as a learning rate, that the product is
            multiplied by as well.
        beta: The factor of ``added``.
        added: The matrix that is added.
        bias: A row that is added to every row of the product.
        activation: ``"relu"`` or empty.
    """

    alpha: float = 1.0
    times: Value | None = None
    beta: float = 0.0
    added: Added | None = None
    bias: Pointer | None = None
    activation: str = ""

    def applied_to(
        self, call: LibraryCall, output: Var, alpha: Var | None
    ) -> LibraryCall:
        """Add this epilogue to a product's ``call``, with its result in ``output``.

        The provider's name gets a word for each term: ``gemm_f32_scaled_added_bias``.
        ``alpha`` is the array of the factor if that is computed on the GPU.
        """
        words, reads, integers = [call.provider], dict(call.reads), dict(call.integers)
        if alpha is not None:
            words.append("times")
            reads["alpha"] = Pointer(alpha)
        elif self.alpha != 1:
            words.append("scaled")
            # A call has no float arguments: it gets the bits of factors.
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
            writes={"c": Pointer(output)},
            integers=integers,
        )


def bits_of(factor: float) -> int:
    """Return the bits of ``factor`` as a float64, an integer argument of a call."""
    return int(np.float64(factor).view(np.int64))


class EpilogueMatcher:
    """Matches the statements of a nest that continue from a product with an epilogue.

    Each statement must be the only reader of the one before. Only products of real
    numbers can have a bias, an activation or a factor in memory.

    Args:
        nest: The nest.
        number: The number of its operand that is the product.
        call: The call that computes the product.
    """

    def __init__(self, nest: Nest, number: int, call: LibraryCall) -> None:
        """Find the statement that computes each value, and those that read it."""
        self.nest = nest
        self.call = call
        self.dtype = nest.operands[number].dtype
        self.suffix = short_name(dtypes.compute_dtype(self.dtype))
        """The end of the names of functions in the compute dtype, such as ``f32``."""
        self.product_operand = nest.operands[number]
        self.definitions = {
            s.result: s for s in nest.statements if not isinstance(s, Store)
        }
        """The statement that computes each value."""
        self.users: dict[Value, list[Statement]] = {}
        """The statements that read each value."""
        for s in nest.statements:
            for value in dict.fromkeys(uses(s)):
                self.users.setdefault(value, []).append(s)
        self.loads = [
            s for s in nest.statements if isinstance(s, Load) and s.operand == number
        ]
        """The statements that load the product, which is operand ``number``."""

    def matches(self) -> list[tuple[Epilogue, Value]]:
        """Return the epilogues that the nest's first statements form, shortest first.

        Each comes with the value of the nest that it computes. For ``relu(0.1 * product
        + c)`` they are the scaled product, the sum, and the activation.
        """
        matched: list[tuple[Epilogue, Value]] = []
        if self.dtype not in dtypes.INEXACT or len(self.loads) != 1:
            return matched
        (load,) = self.loads
        if load.indices or load.level != "element" or not self.is_whole():
            return matched
        value, epilogue = load.result, Epilogue()
        while True:
            following = self.users.get(value, [])
            if not epilogue.activation and self.dtype in dtypes.FLOATS:
                rectified = self.rectified(value, following)
                if rectified is not None:
                    epilogue = replace(epilogue, activation="relu")
                    return [*matched, (epilogue, rectified)]
            if len(following) != 1 or not isinstance(following[0], Compute):
                return matched
            s = following[0]
            is_rounding = s.function == f"round_{self.suffix}_{short_name(self.dtype)}"
            changed = epilogue if is_rounding else self.extended(s, value, epilogue)
            if changed is None:
                return matched
            value, epilogue = s.result, changed
            if epilogue != Epilogue():
                matched.append((epilogue, value))

    def rectified(self, value: Value, following: list[Statement]) -> Value | None:
        """Return the value ``select(value <= 0, 0, value)``; None if there is none.

        Its two statements must be the only readers of ``value``. ``following`` are the
        statements that read ``value``.
        """
        kinds = {s.function: s for s in following if isinstance(s, Compute)}
        below = kinds.get(f"le_{self.suffix}")
        chosen = kinds.get(f"select_{self.suffix}")
        if len(following) != 2 or below is None or chosen is None:
            return None
        compared, zero = below.arguments
        is_mask = compared == value and self.users[below.result] == [chosen]
        mask, zeros, kept = chosen.arguments
        fits = is_mask and (mask, kept) == (below.result, value)
        return chosen.result if fits and _is_zero(zero) and _is_zero(zeros) else None

    def extended(self, s: Compute, value: Value, e: Epilogue) -> Epilogue | None:
        """Extend the epilogue ``e``, whose result is ``value``, by the operation ``s``.

        None if cuBLASLt has no such epilogue. Factors must come before an added array
        or a bias, and an activation must be last.
        """
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
        if operation == "add":
            return self.with_term(other, e, factor=1.0)
        if operation == "sub" and is_first:
            return self.with_term(other, e, factor=-1.0)
        if operation == "sub" and is_plain:
            return self.with_term(other, replace(e, alpha=-e.alpha), factor=1.0)
        if operation == "max" and _is_zero(other) and self.dtype in dtypes.FLOATS:
            return replace(e, activation="relu")
        return self.times(other, e) if operation == "mul" and is_plain else None

    def times(self, other: Scalar, e: Epilogue) -> Epilogue | None:
        """Multiply the epilogue ``e``, which adds nothing yet, by ``other``.

        A constant becomes a part of ``alpha``, and a value that is the same for all
        elements becomes ``times``. None if ``other`` is neither, or if there is such a
        value already.
        """
        if isinstance(other, Constant):
            factor = _factor(other)
            return None if factor is None else replace(e, alpha=e.alpha * factor)
        if not self.is_number(other) or e.times is not None:
            return None
        assert isinstance(other, Value)
        return replace(e, times=other)

    def is_number(self, x: Scalar) -> bool:
        """Whether ``x`` is a real number that is the same for all elements."""
        if not isinstance(x, Value) or self.dtype not in dtypes.FLOATS:
            return False
        needs = with_dependencies(
            self.nest.statements, [self.definitions[x]], through_reductions=True
        )
        return all(
            isinstance(s, Compute)
            or (
                isinstance(s, Load)
                and not s.indices
                and not any(self.nest.operands[s.operand].strides)
            )
            for s in needs
        )

    def with_term(self, other: Scalar, e: Epilogue, factor: float) -> Epilogue | None:
        """Add ``factor * other`` to the epilogue ``e``; None if that is impossible.

        ``other`` must be loaded, perhaps scaled by a constant: a row becomes the bias,
        an array of the product's shape the added array.
        """
        load_and_scale = self.scaled_load(other)
        if load_and_scale is None:
            return None
        load, scale = load_and_scale
        operand = self.nest.operands[load.operand]
        axes = zip(self.nest.axes, operand.strides, strict=True)
        is_of_row = load.level == "outer" and any(a.reduced and n for a, n in axes)
        strides = self.strides(operand.strides)
        is_other = operand.dtype != self.dtype or operand.written
        if is_of_row or strides is None or is_other:
            return None
        factor *= scale
        pointer, p = Pointer(operand.array, operand.offset), self.call.integers
        batch, row, column = strides
        if p["n"] > 1 and column != 1:
            return None  # the library's rows are contiguous
        # The same for all rows: a bias. So is a second array that is added to one row.
        if (row == 0 and p["m"] > 1) or (p["m"] == 1 and e.added is not None):
            can_be_bias = (
                p["batch"] == 1 and self.dtype in dtypes.FLOATS and factor == 1
            )
            return replace(e, bias=pointer) if can_be_bias and e.bias is None else None
        leading = p["n"] if p["m"] == 1 else row
        if e.added is not None or leading < p["n"] or batch < 0:
            return None
        return replace(e, added=Added(pointer, leading, batch), beta=factor)

    def scaled_load(self, x: Scalar) -> tuple[Load, float] | None:
        """Return the load and the constant factor whose product is ``x``.

        The factor is 1 for a plain load. None if ``x`` is something else, or is loaded
        at computed indices. An example are parameters, scaled by their decay.
        """
        producer = self.definitions.get(x) if isinstance(x, Value) else None
        scale: float | None = 1.0
        if isinstance(producer, Compute) and producer.function == f"mul_{self.suffix}":
            first, second = producer.arguments
            if not isinstance(second, Constant):
                first, second = second, first
            scale = _factor(second) if isinstance(second, Constant) else None
            producer = self.definitions.get(first) if isinstance(first, Value) else None
        if scale is None or not isinstance(producer, Load) or producer.indices:
            return None
        return producer, scale

    def axes(self, strides: Sequence[int]) -> list[AxisStrides]:
        """Return the nest's axes: extents, strides in the product, and ``strides``."""
        extents = [axis.extent for axis in self.nest.axes]
        return list(map(AxisStrides, extents, self.product_operand.strides, strides))

    def is_whole(self) -> bool:
        """Whether the nest reads all of the product, each element once."""
        axes = self.axes(self.product_operand.strides)
        product = self.call.writes["c"].array
        return not self.product_operand.offset and covers_source(
            axes, product.type.size
        )

    def strides(self, strides: Sequence[int]) -> tuple[int, ...] | None:
        """Return an operand's strides along the product's axes [batch, m, n].

        ``strides`` are those along the nest's axes. None if the operand has no single
        stride along one of the product's axes.
        """
        p = self.call.integers
        return strides_along(self.axes(strides), (p["batch"], p["m"], p["n"]))


def _is_zero(x: Scalar) -> bool:
    """Whether ``x`` is the constant 0."""
    return isinstance(x, Constant) and x.value == 0


def _factor(constant: Constant) -> float | None:
    """Return the value of a constant factor; None if it is not real and finite."""
    value = complex(constant.value)
    return value.real if np.isfinite(value) and not value.imag else None
