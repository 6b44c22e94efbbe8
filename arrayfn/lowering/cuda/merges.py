"""Merges: one exchange for two reductions, of which the second needs the first.

The sum of ``exp(v - u)`` has a *shift* ``u``, the maximum of the row. A part of the
row, a warp's or a block's, uses its own maximum ``p`` as the shift instead. The parts'
results are then combined in one exchange, and each sum is *rescaled* from the part's
shift to the row's: ``sum(exp(v - u)) = sum(exp(v - p)) * exp(p - u)``, the online
softmax of Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
The factor is at most 1, as ``p <= u``.

Sums of squares are rescaled by ``sum((v - u)**2) = sum((v - p)**2) + (p - u) * (2 *
sum(v - p) + n * (p - u))`` (Chan, Golub and LeVeque, "Algorithms for computing the
sample variance", 1983), with the mean of a part's ``n`` elements as its shift ``p``.
The sum of ``v - p`` consists of rounding errors. Parts of rows that are separate
kernels (``merged_parts``) need it to be exact for values far from 0. Within a kernel it
is left out: it changes the sum by no more than the rounding of ``u`` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Unshifted:
    """A reduction of the later stage that has no shift."""

    reduce: Reduce


@dataclass(frozen=True, slots=True)
class Exponentials:
    """The later stage's sum of exponentials relative to a maximum.

    ``reduce`` sums ``element``, which is ``exp(v - shift)``. ``maximum`` is the earlier
    stage's reduction of ``v``, of which ``shift`` is the result.
    """

    reduce: Reduce
    shift: Value
    maximum: Reduce
    element: Compute


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Merge:
    """The reductions of ``stage`` and of the next one, which share an exchange.

    Args:
        stage: The earlier of the two.
        reduces: Its reductions.
        rescaled: Those of the later stage.
        provisional: Names of the later stage's element values that depend on a shift: a
            part computes them with its own.
    """

    stage: int
    reduces: tuple[Reduce, ...]
    rescaled: tuple[Rescaled, ...]
    provisional: frozenset[str]

    @property
    def maxima(self) -> tuple[Reduce, ...]:
        """The earlier reductions that are the shifts of exponentials."""
        sums = (m.maximum for m in self.rescaled if isinstance(m, Exponentials))
        return tuple(dict.fromkeys(sums))

    @property
    def scaled(self) -> Mapping[str, Exponentials]:
        """The sums of exponentials, by the names of the exponentials.

        A factor rescales the exponentials that are kept, too.
        """
        sums = (m for m in self.rescaled if isinstance(m, Exponentials))
        return {m.element.result.name: m for m in sums}

    @property
    def sent(self) -> tuple[Value, ...]:
        """The values that the parts of a row exchange, in this order."""
        reduces = (*self.reduces, *(m.reduce for m in self.rescaled))
        return tuple(s.result for s in reduces)


def merges_of(nest: Nest, squares: bool = False) -> tuple[Merge, ...]:
    """The pairs of stages of ``nest`` that can share an exchange, in order.

    A stage is in one pair at most. Pairs with a sum of squares are left out unless
    ``squares``.
    """
    merges: list[Merge] = []
    stage = 0
    while stage + 1 < nest.stages:
        merge = _merge_of(nest, stage, squares)
        stage += 1 if merge is None else 2
        merges += [] if merge is None else [merge]
    return tuple(merges)


def _merge_of(nest: Nest, stage: int, squares: bool) -> Merge | None:
    """The merge of ``stage`` and the next; None if a reduction cannot be rescaled.

    With ``squares`` False, a sum of squares cannot be.
    """
    earlier, later = _reduces(nest, stage), _reduces(nest, stage + 1)
    stored = any(s.stage == stage + 1 for s in nest.statements if is_element_store(s))
    if not earlier or not later or stored or nest.has_totals:
        return None
    producers = {s.result.name: s for s in nest.statements if not isinstance(s, Store)}
    dependent = _dependents(nest, earlier)
    candidates = [_rescaled(s, earlier, producers, dependent) for s in later]
    rescaled = tuple(m for m in candidates if m is not None)
    if len(rescaled) < len(later) or all(isinstance(m, Unshifted) for m in rescaled):
        return None
    if not squares and any(isinstance(m, Squares) for m in rescaled):
        return None
    elements = {
        s.result.name
        for s in nest.statements
        if not isinstance(s, (Store, Reduce)) and s.level == "element"
    }
    provisional = frozenset(dependent & elements)
    return Merge(stage, tuple(earlier), rescaled, provisional)


def _reduces(nest: Nest, stage: int) -> list[Reduce]:
    """The reductions of stage number ``stage``."""
    return [s for s in nest.statements if isinstance(s, Reduce) and s.stage == stage]


def _dependents(nest: Nest, reduces: Sequence[Reduce]) -> set[str]:
    """Names of the results of ``reduces`` and of what is computed from them.

    Later reductions and what needs them are left out.
    """
    names = {s.result.name for s in reduces}
    for s in nest.statements:  # in an order in which values are defined
        if not isinstance(s, (Store, Reduce)) and names & {v.name for v in uses(s)}:
            names.add(s.result.name)
    return names


def _rescaled(
    s: Reduce,
    earlier: Sequence[Reduce],
    producers: Mapping[str, Statement],
    dependent: set[str],
) -> Rescaled | None:
    """How ``s``, a reduction of the later stage, is rescaled; None if it cannot be.

    Args:
        s: The reduction.
        earlier: The reductions of the earlier stage.
        producers: The statement that computes each value, by the value's name.
        dependent: Names of the values that need one of ``earlier``.
    """
    if not isinstance(s.argument, Value) or s.argument.name not in dependent:
        return Unshifted(s)
    element = _producer(s.argument, producers)
    if not isinstance(element, Compute):
        return None
    operation, _, suffix = element.function.rpartition("_")
    if s.function != f"accumulate_add_{suffix}":
        return None
    if operation == "exp":
        (x,) = element.arguments
        for _, shift, reduce in _differences(x, f"max_{suffix}", earlier, producers):
            if _is_maximum(shift, reduce, producers):
                return Exponentials(s, shift, reduce, element)
    elif _is_square(element, producers) and suffix in ("f32", "f64"):
        x = element.arguments[0]
        for d, shift, reduce in _differences(x, f"add_{suffix}", earlier, producers):
            producer = producers[shift.name]
            if isinstance(producer, Compute) and producer.level == "outer":
                return Squares(s, shift, reduce, d)
    return None


def _is_square(s: Compute, producers: Mapping[str, Statement]) -> bool:
    """Whether ``s`` computes the square of a value, as a square or as a product.

    ``producers`` has the statement that computes each value, by the value's name.
    """
    same = len({_resolved(x, producers) for x in s.arguments}) == 1
    return same and s.function.rpartition("_")[0] in ("square", "mul")


def _differences(
    x: Scalar,
    combine: str,
    earlier: Sequence[Reduce],
    producers: Mapping[str, Statement],
) -> Iterator[tuple[Compute, Value, Reduce]]:
    """The ways in which ``x`` is ``v - shift``, with an earlier reduction of ``v``.

    Yields the subtraction, the shift and the reduction: one of ``earlier`` with the
    function ``accumulate_`` + ``combine``, where ``combine`` is ``max_f32`` for
    example. ``producers`` has the statement that computes each value, by its name.
    """
    difference = _producer(x, producers)
    suffix = combine.rpartition("_")[2]
    if not isinstance(difference, Compute) or difference.function != f"sub_{suffix}":
        return
    v, shift = (_resolved(y, producers) for y in difference.arguments)
    for reduce in earlier:
        combines = reduce.function == f"accumulate_{combine}"
        is_of_v = _resolved(reduce.argument, producers) == v
        if combines and is_of_v and isinstance(shift, Value):
            yield difference, shift, reduce


def _resolved(x: Scalar, producers: Mapping[str, Statement]) -> Scalar:
    """The value that ``x`` equals once identity functions are looked through.

    ``producers`` has the statement that computes each value, by the value's name.
    """
    while isinstance(x, Value):
        s = producers[x.name]
        if not isinstance(s, Compute) or not s.function.startswith("identity_"):
            break
        (x,) = s.arguments
    return x


def _producer(x: Scalar, producers: Mapping[str, Statement]) -> Statement | None:
    """The statement that computes ``x``, once identity functions are looked through.

    ``producers`` has the statement that computes each value, by the value's name. None
    if ``x`` is no value: a constant or an argument.
    """
    value = _resolved(x, producers)
    return producers[value.name] if isinstance(value, Value) else None


def _is_maximum(
    shift: Value, maximum: Reduce, producers: Mapping[str, Statement]
) -> bool:
    """Whether ``shift`` is the result of ``maximum`` wherever that is finite.

    Programs guard against infinite maxima: they take 0 in their place, or the maximum
    with the lowest finite number. ``producers`` has the statement that computes each
    value, by the value's name.
    """
    if shift == maximum.result:
        return True
    guard = producers[shift.name]
    if not isinstance(guard, Compute):
        return False
    if guard.function == maximum.function:
        x, y = guard.arguments
        return x == maximum.result and isinstance(y, Constant)
    if not guard.function.startswith("select_"):
        return False
    test, x, y = guard.arguments
    tested = producers[test.name] if isinstance(test, Value) else None
    return (
        x == maximum.result
        and isinstance(y, Constant)
        and y.value == 0
        and isinstance(tested, Compute)
        and tested.function.startswith("isfinite_")
        and tested.arguments == (maximum.result,)
    )
