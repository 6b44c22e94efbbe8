"""Two reductions of a row, the second of which needs the first, in one exchange.

The sum of ``exp(v - max(v))`` and that of ``(v - mean(v)) ** 2`` are taken about a
number of the row. A warp takes them about its own instead: the greatest element that
the warp has, or its own mean. What the warps have come to is then combined at once, and
each sum is moved from the warp's number ``p`` to the row's ``u``:

* ``sum(exp(v - u)) = sum(exp(v - p)) * exp(p - u)``, as in the normaliser of Milakov
  and Gimelshein, "Online normalizer calculation for softmax" (2018);
* ``sum((v - u)**2) = sum((v - p)**2) + 2 (p - u) sum(v - p) + n (p - u)**2`` for ``n``
  elements: Chan, Golub and LeVeque, "Algorithms for computing the sample variance"
  (1983), with the middle term, as the warp's mean is a rounded one.

The first never grows what it moves, as ``p <= u``. In the second ``p`` and ``u`` are
means of the same elements, so nothing cancels that the variance does not hold anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from arrayfn import dtypes
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
    """The sum of ``element``: ``exp(v - about)``, ``about`` what ``greatest`` gives."""

    reduce: Reduce
    about: Value
    greatest: Reduce
    element: Compute


@dataclass(frozen=True, slots=True)
class Squares:
    """The sum of ``(v - about)**2``, ``about`` what ``total``, that of ``v``, gives.

    ``residual`` is the sum of ``v - about``.
    """

    reduce: Reduce
    about: Value
    total: Reduce
    residual: Reduce


Moved = Unmoved | Exponentials | Squares


@dataclass(frozen=True, slots=True)
class Merge:
    """The reductions of ``stage`` and of the next, which are combined together.

    ``count`` is how many elements a thread has, where threads have unlike many.
    ``provisional`` are the element values of the next stage that are taken about a
    warp's number.
    """

    stage: int
    reduces: tuple[Reduce, ...]
    moved: tuple[Moved, ...]
    count: Reduce | None
    provisional: frozenset[str]

    @property
    def totals(self) -> tuple[Reduce, ...]:
        """Sums of the earlier stage that a warp needs an estimate of."""
        found = (m.total for m in self.moved if isinstance(m, Squares))
        return tuple(dict.fromkeys(found))

    @property
    def greatest(self) -> tuple[Reduce, ...]:
        """What exponentials are taken about."""
        found = (m.greatest for m in self.moved if isinstance(m, Exponentials))
        return tuple(dict.fromkeys(found))

    @property
    def scaled(self) -> Mapping[str, Exponentials]:
        """The exponentials by name: where they are kept, a factor moves them too."""
        found = (m for m in self.moved if isinstance(m, Exponentials))
        return {m.element.result.name: m for m in found}

    @property
    def sent(self) -> tuple[Value, ...]:
        """What the warps exchange, in this order."""
        values = [s.result for s in self.reduces]
        for m in self.moved:
            values.append(m.reduce.result)
            if isinstance(m, Squares):
                values += [m.about, m.residual.result]
        if self.count is not None:
            values.append(self.count.result)
        return tuple(dict.fromkeys(values))


def merged(nest: Nest, counted: bool) -> tuple[Nest, tuple[Merge, ...]]:
    """``nest`` with what its merges need, and these, of each stage at most one.

    Where rows do not fill all threads, their elements are ``counted``.
    """
    merges: list[Merge] = []
    statements = list(nest.statements)
    stage = 0
    while stage + 1 < nest.stages:
        merge = _merge_of(nest, stage, counted)
        stage += 1
        if merge is None:
            continue
        stage += 1
        merges.append(merge)
        added = [m.residual for m in merge.moved if isinstance(m, Squares)]
        statements += [s for s in (*added, merge.count) if s is not None]
    return replace(nest, statements=tuple(statements)), tuple(merges)


def _merge_of(nest: Nest, stage: int, counted: bool) -> Merge | None:
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
    count = None
    if counted and any(isinstance(m, Squares) for m in moved):
        value = Value(f"{earlier[0].result.name}_count", dtypes.int32)
        none, one = (Constant(k, dtypes.int32) for k in range(2))
        count = Reduce(value, "accumulate_add_i32", one, none, stage)
    elements = {
        s.result.name
        for s in nest.statements
        if not isinstance(s, (Store, Reduce)) and s.level == "element"
    }
    provisional = frozenset(dependent & elements)
    return Merge(stage, tuple(earlier), moved, count, provisional)


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
    element = _maker(s.argument, producers)
    if not _is_sum(s) or not isinstance(element, Compute):
        return None
    kind, _, suffix = element.function.rpartition("_")
    x, *others = element.arguments
    squared = kind == "square" or (kind == "mul" and others == [x])
    if not (squared or kind == "exp") or not isinstance(x, Value):
        return None
    difference = _maker(x, producers)
    if not isinstance(difference, Compute) or difference.function != f"sub_{suffix}":
        return None
    v, about = (_plain(y, producers) for y in difference.arguments)
    if not isinstance(about, Value) or about.name not in dependent:
        return None
    for first in earlier:
        if _plain(first.argument, producers) != v:
            continue
        if squared and _is_sum(first) and _is_mean(about, first, producers):
            result = replace(s.result, name=f"{s.result.name}_residual")
            residual = replace(s, result=result, argument=x)
            return Squares(s, about, first, residual)
        greatest = first.function == f"accumulate_max_{suffix}"
        if kind == "exp" and greatest and _is_base(about, first, producers):
            return Exponentials(s, about, first, element)
    return None


def _plain(x: Scalar, producers: Mapping[str, Statement], *others: str) -> Scalar:
    """What ``x`` is another name of, or what ``others`` among functions made it of."""
    while isinstance(x, Value):
        made = producers[x.name]
        if not isinstance(made, Compute):
            break
        if made.function.rpartition("_")[0] not in ("identity", *others):
            break
        (x,) = made.arguments
    return x


def _maker(
    x: Scalar, producers: Mapping[str, Statement], *others: str
) -> Statement | None:
    """The statement that makes ``x``, whatever its name."""
    plain = _plain(x, producers, *others)
    return producers[plain.name] if isinstance(plain, Value) else None


def _is_sum(s: Reduce) -> bool:
    return s.function in ("accumulate_add_f32", "accumulate_add_f64")


def _is_mean(about: Value, total: Reduce, producers: Mapping[str, Statement]) -> bool:
    """Whether ``about`` is ``total`` by a number, or that number rounded to a half."""
    made = _maker(about, producers, "round_f32")
    if not isinstance(made, Compute) or made.function[:4] not in ("div_", "mul_"):
        return False
    x, y = made.arguments
    return x == total.result and isinstance(y, Constant)


def _is_base(
    about: Value, greatest: Reduce, producers: Mapping[str, Statement]
) -> bool:
    """Whether ``about`` is ``greatest``, or 0 in its place where that is infinite."""
    if about == greatest.result:
        return True
    made = producers[about.name]
    if not isinstance(made, Compute) or not made.function.startswith("select_"):
        return False
    test, x, y = made.arguments
    tested = producers[test.name] if isinstance(test, Value) else None
    return (
        x == greatest.result
        and isinstance(y, Constant)
        and y.value == 0
        and isinstance(tested, Compute)
        and tested.function.startswith("isfinite_")
        and tested.arguments == (greatest.result,)
    )
