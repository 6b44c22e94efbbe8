"""Two reductions of a row, the second of which needs the first, in one exchange.

The sum of ``exp(v - max(v))`` is taken about a number of the row. A part of the row, a
warp's or a block's, takes it about its own instead: its largest element. The parts'
results are then combined in one exchange, and each sum is moved from the part's number
``p`` to the row's ``u``: ``sum(exp(v - u)) = sum(exp(v - p)) *
exp(p - u)``, as in the normaliser of Milakov and Gimelshein, "Online normalizer
calculation for softmax" (2018). It never grows, as ``p <= u``.

Sums of squares are moved by ``sum((v - u)**2) = sum((v - p)**2) + (p - u) * (2 *
sum(v - p) + n * (p - u))`` (Chan, Golub and LeVeque, "Algorithms for computing the
sample variance", 1983), for which ``p`` is the mean of a part's ``n`` elements. The sum
of ``v - p``, all of it rounding, is needed to be exact far from 0 by parts of rows that
are kernels' own. Within a kernel it is left out: it moves the sum by no more than the
rounding of ``u`` itself does.
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
class Unmoved:
    """A reduction of the later stage that needs nothing of the earlier one."""

    reduce: Reduce


@dataclass(frozen=True, slots=True)
class Exponentials:
    """The sum of ``element``: ``exp(v - about)``, ``about`` what ``maximum`` gives."""

    reduce: Reduce
    about: Value
    maximum: Reduce
    element: Compute


@dataclass(frozen=True, slots=True)
class Squares:
    """The sum of the squares of ``difference``, ``v - about``; ``total``: that of v."""

    reduce: Reduce
    about: Value
    total: Reduce
    difference: Compute


Moved = Unmoved | Exponentials | Squares


@dataclass(frozen=True, slots=True)
class Merge:
    """The reductions of ``stage`` and of the next, which are combined together.

    ``provisional`` are the element values of the next stage that are taken about a
    part's number.
    """

    stage: int
    reduces: tuple[Reduce, ...]
    moved: tuple[Moved, ...]
    provisional: frozenset[str]

    @property
    def maxima(self) -> tuple[Reduce, ...]:
        """What exponentials are taken about."""
        found = (m.maximum for m in self.moved if isinstance(m, Exponentials))
        return tuple(dict.fromkeys(found))

    @property
    def scaled(self) -> Mapping[str, Exponentials]:
        """The exponentials by name: where they are kept, a factor moves them too."""
        found = (m for m in self.moved if isinstance(m, Exponentials))
        return {m.element.result.name: m for m in found}

    @property
    def sent(self) -> tuple[Value, ...]:
        """What the parts exchange, in this order."""
        reduces = (*self.reduces, *(m.reduce for m in self.moved))
        return tuple(s.result for s in reduces)


def merges_of(nest: Nest, squares: bool = False) -> tuple[Merge, ...]:
    """The merges of ``nest``, of each stage at most one; of ``squares`` if asked."""
    merges: list[Merge] = []
    stage = 0
    while stage + 1 < nest.stages:
        merge = _merge_of(nest, stage, squares)
        stage += 1 if merge is None else 2
        merges += [] if merge is None else [merge]
    return tuple(merges)


def _merge_of(nest: Nest, stage: int, squares: bool) -> Merge | None:
    """The merge of ``stage`` and the next; None if some reduction cannot be moved."""
    earlier, later = _reduces(nest, stage), _reduces(nest, stage + 1)
    stored = any(s.stage == stage + 1 for s in nest.statements if is_element_store(s))
    if not earlier or not later or stored or nest.has_totals:
        return None
    producers = {s.result.name: s for s in nest.statements if not isinstance(s, Store)}
    dependent = _dependents(nest, earlier)
    found = [_moved(s, earlier, producers, dependent) for s in later]
    moved = tuple(m for m in found if m is not None)
    if len(moved) < len(later) or all(isinstance(m, Unmoved) for m in moved):
        return None
    if not squares and any(isinstance(m, Squares) for m in moved):
        return None
    elements = {
        s.result.name
        for s in nest.statements
        if not isinstance(s, (Store, Reduce)) and s.level == "element"
    }
    provisional = frozenset(dependent & elements)
    return Merge(stage, tuple(earlier), moved, provisional)


def _reduces(nest: Nest, stage: int) -> list[Reduce]:
    return [s for s in nest.statements if isinstance(s, Reduce) and s.stage == stage]


def _dependents(nest: Nest, reduces: Sequence[Reduce]) -> set[str]:
    """Names of the values that need one of ``reduces``, but for later reductions."""
    found = {s.result.name for s in reduces}
    for s in nest.statements:  # in an order in which values are there
        if not isinstance(s, (Store, Reduce)) and found & {v.name for v in uses(s)}:
            found.add(s.result.name)
    return found


def _moved(
    s: Reduce,
    earlier: Sequence[Reduce],
    producers: Mapping[str, Statement],
    dependent: set[str],
) -> Moved | None:
    """How ``s`` is moved; None if it cannot be."""
    if not isinstance(s.argument, Value) or s.argument.name not in dependent:
        return Unmoved(s)
    made = _maker(s.argument, producers)
    if not isinstance(made, Compute):
        return None
    kind, _, suffix = made.function.rpartition("_")
    if s.function != f"accumulate_add_{suffix}":
        return None
    if kind == "exp":
        (x,) = made.arguments
        for _, about, first in _differences(x, f"max_{suffix}", earlier, producers):
            if _is_base(about, first, producers):
                return Exponentials(s, about, first, made)
    elif _is_square(made, producers) and suffix in ("f32", "f64"):
        x = made.arguments[0]
        for d, about, first in _differences(x, f"add_{suffix}", earlier, producers):
            base = producers[about.name]
            if isinstance(base, Compute) and base.level == "outer":
                return Squares(s, about, first, d)
    return None


def _is_square(made: Compute, producers: Mapping[str, Statement]) -> bool:
    same = len({_plain(x, producers) for x in made.arguments}) == 1
    return same and made.function.rpartition("_")[0] in ("square", "mul")


def _differences(
    x: Scalar,
    kind: str,
    earlier: Sequence[Reduce],
    producers: Mapping[str, Statement],
) -> Iterator[tuple[Compute, Value, Reduce]]:
    """The subtraction ``v - about`` that makes ``x``, about, and a reduction of v.

    That is one of the ``earlier``, of this kind.
    """
    made = _maker(x, producers)
    suffix = kind.rpartition("_")[2]
    if not isinstance(made, Compute) or made.function != f"sub_{suffix}":
        return
    v, about = (_plain(y, producers) for y in made.arguments)
    for first in earlier:
        alike = first.function == f"accumulate_{kind}"
        of_v = _plain(first.argument, producers) == v
        if alike and of_v and isinstance(about, Value):
            yield made, about, first


def _plain(x: Scalar, producers: Mapping[str, Statement]) -> Scalar:
    """What ``x`` is another name of."""
    while isinstance(x, Value):
        made = producers[x.name]
        if not isinstance(made, Compute) or not made.function.startswith("identity_"):
            break
        (x,) = made.arguments
    return x


def _maker(x: Scalar, producers: Mapping[str, Statement]) -> Statement | None:
    """The statement that makes ``x``, whatever its name."""
    plain = _plain(x, producers)
    return producers[plain.name] if isinstance(plain, Value) else None


def _is_base(about: Value, maximum: Reduce, producers: Mapping[str, Statement]) -> bool:
    """Whether ``about`` is ``maximum``, or a number in its place where it is infinite.

    That is 0, or the lowest finite number in the place of -inf.
    """
    if about == maximum.result:
        return True
    made = producers[about.name]
    if not isinstance(made, Compute):
        return False
    if made.function == maximum.function:
        x, y = made.arguments
        return x == maximum.result and isinstance(y, Constant)
    if not made.function.startswith("select_"):
        return False
    test, x, y = made.arguments
    tested = producers[test.name] if isinstance(test, Value) else None
    return (
        x == maximum.result
        and isinstance(y, Constant)
        and y.value == 0
        and isinstance(tested, Compute)
        and tested.function.startswith("isfinite_")
        and tested.arguments == (maximum.result,)
    )
