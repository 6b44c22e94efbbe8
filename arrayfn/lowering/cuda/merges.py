"""Merges: two reductions with one exchange, though the second needs the first's result.

The sum of ``exp(v - u)`` has a *shift* ``u``, the maximum of the row. Threads would
exchange maxima first, and sums later. Instead each part of the row, a warp's or a
block's, takes its own maximum ``p`` as the shift, and the parts exchange both results
at once. Each sum is then *rescaled* from the part's shift to the row's: ``sum(exp(v -
u)) = sum(exp(v - p)) * exp(p - u)``. This is the online softmax of Milakov and
Gimelshein, "Online normalizer calculation for softmax" (2018). The factor is at most 1,
as ``p <= u``.

Sums of squares are rescaled by ``sum((v - u)**2) = sum((v - p)**2) + (p - u) * (2 *
sum(v - p) + n * (p - u))`` (Chan, Golub and LeVeque, "Algorithms for computing the
sample variance", 1983), with the mean of a part's ``n`` elements as its shift ``p``.
The sum of ``v - p`` consists of rounding errors. Parts of rows that are separate
kernels (``merged_parts``) need it for exact results with values far from 0. Within a
kernel it is left out: it changes the sum by no more than the rounding of ``u`` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from arrayfn.lowering.kernel_ir import (
    Compute,
    Constant,
    Nest,
    Reduce,
    Scalar,
    Statement,
    Store,
    Value,
    is_element_store,
    uses,
)
from arrayfn.records import frozen


@frozen(slots=True)
class Unshifted:
    """A reduction of the later stage without a shift; parts combine it as it is."""

    reduce: Reduce


@frozen(slots=True)
class Exponentials:
    """The later stage's sum of exponentials relative to a maximum.

    ``reduce`` sums ``element``, which is ``exp(v - shift)``. ``maximum`` is the earlier
    stage's reduction of ``v``, of which ``shift`` is the result.
    """

    reduce: Reduce
    shift: Value
    maximum: Reduce
    element: Compute


@frozen(slots=True)
class Squares:
    """The later stage's sum of squares relative to a mean.

    ``reduce`` sums the squares of ``difference``, which is ``v - shift``. ``total`` is
    the earlier stage's sum of ``v``, from which ``shift`` is computed.
    """

    reduce: Reduce
    shift: Value
    total: Reduce
    difference: Compute


Rescaled = Unshifted | Exponentials | Squares


@frozen(slots=True)
class Merge:
    """The reductions of ``stage`` and of the next one, which share an exchange.

    Args:
        stage: The earlier of the two stages.
        reduces: The reductions of the earlier stage.
        rescaled: The reductions of the later stage, and how they are rescaled.
        provisional: Names of the values of elements that depend on a shift. Each part
            computes them with its own shift.
    """

    stage: int
    reduces: tuple[Reduce, ...]
    rescaled: tuple[Rescaled, ...]
    provisional: frozenset[str]

    @property
    def maxima(self) -> tuple[Reduce, ...]:
        """The earlier stage's maxima that are shifts of exponentials."""
        sums = (m.maximum for m in self.rescaled if isinstance(m, Exponentials))
        return tuple(dict.fromkeys(sums))

    @property
    def scaled(self) -> Mapping[str, Exponentials]:
        """The sum that each exponential is a term of, by the exponential's name.

        Exponentials that are kept in registers are rescaled by the same factor as the
        sum.
        """
        sums = (m for m in self.rescaled if isinstance(m, Exponentials))
        return {m.element.result.name: m for m in sums}

    @property
    def sent(self) -> tuple[Value, ...]:
        """The values that the parts of a row exchange, in this order."""
        reduces = (*self.reduces, *(m.reduce for m in self.rescaled))
        return tuple(s.result for s in reduces)


def merges_of(nest: Nest, squares: bool = False) -> tuple[Merge, ...]:
    """Find the pairs of stages of ``nest`` that can share an exchange, in order.

    A stage is in one pair at most. Pairs with a sum of squares are found only with
    ``squares``.
    """
    merges: list[Merge] = []
    stage = 0
    while stage + 1 < nest.stages:
        merge = _Pair(nest, stage).merge(squares)
        stage += 1 if merge is None else 2
        merges += [] if merge is None else [merge]
    return tuple(merges)


class _Pair:
    """Two successive stages of a nest, to be tested for a merge."""

    def __init__(self, nest: Nest, stage: int) -> None:
        """Find the reductions of stages ``stage`` and ``stage + 1`` of ``nest``."""
        # ``stage`` is the number of the earlier of the two.
        self.nest = nest
        self.stage = stage
        reduces = nest.reductions
        self.earlier = [s for s in reduces if s.stage == stage]
        self.later = [s for s in reduces if s.stage == stage + 1]
        self.definitions = {
            s.result.name: s for s in nest.statements if not isinstance(s, Store)
        }
        self.dependent = self._dependents()
        """Names of the values that need a result of the earlier stage."""

    def merge(self, squares: bool) -> Merge | None:
        """Return the merge of the stages; None if a later reduction cannot be rescaled.

        Sums of squares are accepted only with ``squares``.
        """
        nest, stage = self.nest, self.stage
        stores = [s for s in nest.statements if is_element_store(s)]
        is_stored = any(s.stage == stage + 1 for s in stores)
        if not self.earlier or not self.later or is_stored or nest.has_totals:
            return None
        candidates = [self.rescaled(s) for s in self.later]
        rescaled = tuple(m for m in candidates if m is not None)
        if len(rescaled) < len(self.later):
            return None
        if all(isinstance(m, Unshifted) for m in rescaled):
            return None
        if not squares and any(isinstance(m, Squares) for m in rescaled):
            return None
        elements = {
            name
            for name, s in self.definitions.items()
            if not isinstance(s, Reduce) and s.level == "element"
        }
        provisional = frozenset(self.dependent & elements)
        return Merge(stage, tuple(self.earlier), rescaled, provisional)

    def _dependents(self) -> set[str]:
        """Return the names of the earlier stage's results, and of what needs them.

        These are the values computed from them. Reductions of later stages, and what is
        computed from those, are left out.
        """
        names = {s.result.name for s in self.earlier}
        for s in self.nest.statements:  # in an order in which values are defined
            if not isinstance(s, (Store, Reduce)) and names & {v.name for v in uses(s)}:
                names.add(s.result.name)
        return names

    def rescaled(self, s: Reduce) -> Rescaled | None:
        """Return how a later reduction ``s`` is rescaled; None if that is impossible.

        A sum of ``exp(v - shift)`` or of ``(v - shift)**2`` can be rescaled if the
        earlier stage has the maximum, or the sum, of ``v``. A reduction that needs no
        shift stays as it is.
        """
        if not isinstance(s.argument, Value) or s.argument.name not in self.dependent:
            return Unshifted(s)
        element = self.definition(s.argument)
        if not isinstance(element, Compute):
            return None
        operation, _, suffix = element.function.rpartition("_")
        if s.function != f"accumulate_add_{suffix}":
            return None
        x = element.arguments[0]
        if operation == "exp":
            for _, shift, maximum in self.differences(x, f"max_{suffix}"):
                if self.is_maximum(shift, maximum):
                    return Exponentials(s, shift, maximum, element)
        elif self.is_square(element) and suffix in ("f32", "f64"):
            for difference, shift, total in self.differences(x, f"add_{suffix}"):
                mean = self.definitions[shift.name]
                if isinstance(mean, Compute) and mean.level == "outer":
                    return Squares(s, shift, total, difference)
        return None

    def is_square(self, s: Compute) -> bool:
        """Whether ``s`` computes the square of a value, as a square or as a product."""
        same = len({self.resolved(x) for x in s.arguments}) == 1
        return same and s.function.rpartition("_")[0] in ("square", "mul")

    def differences(
        self, x: Scalar, combine: str
    ) -> Iterator[tuple[Compute, Value, Reduce]]:
        """Match ``x`` with ``v - shift``, for each earlier reduction of ``v``.

        Yields the subtraction, the shift and the reduction, whose function is
        ``accumulate_`` and ``combine``: ``max_f32`` for example.
        """
        difference = self.definition(x)
        suffix = combine.rpartition("_")[2]
        if (
            not isinstance(difference, Compute)
            or difference.function != f"sub_{suffix}"
        ):
            return
        v, shift = map(self.resolved, difference.arguments)
        for reduce in self.earlier:
            combines = reduce.function == f"accumulate_{combine}"
            is_of_v = self.resolved(reduce.argument) == v
            if combines and is_of_v and isinstance(shift, Value):
                yield difference, shift, reduce

    def resolved(self, x: Scalar) -> Scalar:
        """Follow ``x`` through identity functions to the value that it equals."""
        while isinstance(x, Value):
            s = self.definitions[x.name]
            if not isinstance(s, Compute) or not s.function.startswith("identity_"):
                break
            (x,) = s.arguments
        return x

    def definition(self, x: Scalar) -> Statement | None:
        """Return the statement that computes ``x``, beyond identity functions.

        None if ``x`` is no value: a constant or an argument.
        """
        value = self.resolved(x)
        return self.definitions[value.name] if isinstance(value, Value) else None

    def is_maximum(self, shift: Value, maximum: Reduce) -> bool:
        """Whether ``shift`` is the result of ``maximum`` wherever that is finite.

        A guard may replace infinite maxima: Programs take 0 in their place, and
        ``merged_parts`` takes the maximum with the lowest finite number. The maximum
        with any other number is not accepted.
        """
        if shift == maximum.result:
            return True
        guard = self.definitions[shift.name]
        if not isinstance(guard, Compute):
            return False
        if guard.function == maximum.function:
            x, y = guard.arguments
            lowest = float(np.finfo(shift.dtype).min)
            is_lowest = isinstance(y, Constant) and y.value == lowest
            return x == maximum.result and is_lowest
        if not guard.function.startswith("select_"):
            return False
        test, x, y = guard.arguments
        tested = self.definitions[test.name] if isinstance(test, Value) else None
        return (
            x == maximum.result
            and isinstance(y, Constant)
            and y.value == 0
            and isinstance(tested, Compute)
            and tested.function.startswith("isfinite_")
            and tested.arguments == (maximum.result,)
        )
