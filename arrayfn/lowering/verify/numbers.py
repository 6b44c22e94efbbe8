"""Numbers of a kernel's text, for all work items and all iterations at once.

A Number is ``base + sum(coefficient * symbol)``. A *symbol* is the index of a loop, an
item, a block or a thread, which takes each value between its bounds (it is *counted*),
or an unknown number, as one loaded from memory, which has only bounds. Bases and bounds
may differ between *lanes*: what does not hold for all values of a symbol at once is
computed for each of them, in a lane of its own. (A lane of a warp is something else.)

What happens *surely* happens whatever the data are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from enum import IntEnum
from typing import Any, Final

import numpy as np

from arrayfn.records import frozen, record

Array = np.ndarray[Any, Any]
Lanes = int | Array
"""A number for each lane, or one number for all lanes."""

MAX_LANES: Final = 1 << 17  # cases analysed at once, which bounds memory and time
_MAX_BLOCKS: Final = 1 << 22
"""The most pairs of blocks and values that are compared one by one."""
ITEM: Final = "$item"
BLOCK: Final = "$block"
THREAD: Final = "$thread"
"""Variables besides those of the text: the work item, block and thread."""
FAR: Final = 1 << 44
"""A magnitude beyond every index, the bound of unknown numbers."""


@frozen(slots=True, eq=False)
class Symbol:
    """An unknown integer that numbers depend on.

    Attributes:
        counted: whether it takes each value between its bounds.
        thread: whether it differs between the threads of a block.
        same: whether it is one element of memory, the same for all items.
    """

    counted: bool
    thread: bool = False
    same: bool = False


Bounds = Mapping[Symbol, tuple[Lanes, Lanes]]
"""The minimum and the maximum of each symbol."""


@frozen(slots=True, eq=False)
class Number:
    """A linear form: ``base`` plus symbols times their coefficients, ``terms``."""

    base: Lanes
    terms: Mapping[Symbol, int] = field(default_factory=dict[Symbol, int])

    def plus(self, other: Number, times: int = 1) -> Number:
        """Return ``self + times * other``."""
        if not other.terms:
            return Number(self.base + other.base * times, self.terms)
        terms = dict(self.terms)
        for symbol, coefficient in other.terms.items():
            total = terms.pop(symbol, 0) + coefficient * times
            if total:
                terms[symbol] = total
        return Number(self.base + other.base * times, terms)

    def times(self, factor: int) -> Number:
        """Return ``factor * self``."""
        if not factor:
            return Number(0)
        terms = {s: c * factor for s, c in self.terms.items()}
        return Number(self.base * factor, terms)

    def in_lanes(self, index: Array) -> Number:
        """Return the number in the lanes with numbers ``index`` only."""
        return (
            self if isinstance(self.base, int) else Number(self.base[index], self.terms)
        )

    def range(self, bounds: Bounds) -> tuple[Lanes, Lanes]:
        """Return the minimum and the maximum in each lane, for these bounds."""
        low = high = self.base
        for symbol, c in self.terms.items():
            first, last = bounds[symbol]
            if c < 0:
                first, last = last, first
            low, high = low + first * c, high + last * c
        return low, high


@frozen(slots=True)
class NonNegative:
    """The condition ``number >= 0``."""

    number: Number


@frozen(slots=True)
class Both:
    """The conjunction of two conditions."""

    first: Truth
    second: Truth


@frozen(slots=True)
class Either:
    """The disjunction of two conditions."""

    first: Truth
    second: Truth


@frozen(slots=True)
class Maybe:
    """A condition that depends on data."""


Truth = NonNegative | Both | Either | Maybe


def negated(truth: Truth) -> Truth:
    """Return the negation of ``truth``: ``not x >= 0`` is ``-1 - x >= 0``."""
    if isinstance(truth, NonNegative):
        return NonNegative(Number(-1).plus(truth.number, -1))
    if isinstance(truth, Both):
        return Either(negated(truth.first), negated(truth.second))
    if isinstance(truth, Either):
        return Both(negated(truth.first), negated(truth.second))
    return truth


@frozen(slots=True, eq=False)
class Memory:
    """An argument's memory from element ``start`` on, or a local array.

    Attributes:
        name: the argument, or a name for the local array.
        kind: the dtype of the elements, such as "f32".
        start: the first element.
        size: the number of elements of a local array, which belongs to a block (shared
            memory) or a thread (registers); None for an argument.
    """

    name: str
    kind: str
    start: Number
    size: Number | None = None


@frozen(slots=True)
class Data:
    """A value that is no integer, condition or array: no index depends on it."""


Value = Number | Truth | Memory | Data


class NeedsLanes(Exception):  # noqa: N818 - control flow, not an error
    """Raised for a statement that needs more lanes; ``change`` adds them to a state."""

    def __init__(self, change: Callable[[State], State]) -> None:
        """Store ``change``, which returns a state with more lanes or other symbols."""
        super().__init__()
        self.change = change


class TooManyLanesError(Exception):
    """Raised if the analysis of a kernel needs more than ``MAX_LANES`` lanes."""


class UnknownTextError(Exception):
    """Raised for a kernel's text that the verifier does not understand."""


class Divergence(IntEnum):
    """Whether the threads of a block have taken different branches."""

    NO = 0
    PERHAPS = 1
    YES = 2


@record
class State:
    """What is known at a point of the text: the variables, in ``count`` lanes.

    A lane is a case that is analysed separately.

    Attributes:
        count: the number of lanes.
        variables: the values of variables, by name.
        bounds: the minimum and maximum of each symbol.
        surely: whether this point is reached whatever the data are.
        divergence: whether some threads of a block do not reach this point.
    """

    count: int
    variables: dict[str, Value]
    bounds: dict[Symbol, tuple[Lanes, Lanes]]
    surely: bool = True
    divergence: Divergence = Divergence.NO

    def copy(self) -> State:
        """Return a copy that can be changed without changing this state."""
        return State(
            self.count,
            dict(self.variables),
            dict(self.bounds),
            self.surely,
            self.divergence,
        )

    # Ranges.

    def range(self, x: Number) -> tuple[Lanes, Lanes]:
        """Return the minimum and the maximum of ``x`` in each lane."""
        return x.range(self.bounds)

    def extremes(self, x: Number) -> tuple[int, int]:
        """Return the minimum and the maximum of ``x`` over all lanes."""
        low, high = self.range(x)
        return int(np.min(low)), int(np.max(high))

    def simplified(self, x: Number) -> Number:
        """Replace symbols that have one value in each lane by their values in ``x``."""
        constant_symbols = [s for s in x.terms if not self.varies(s)]
        if not constant_symbols:
            return x
        base, terms = x.base, dict(x.terms)
        for symbol in constant_symbols:
            base = base + self.bounds[symbol][0] * terms.pop(symbol)
        return Number(base, terms)

    def varies(self, symbol: Symbol) -> bool:
        """Whether ``symbol`` may have several values in a lane.

        Symbols that are not counted always may.
        """
        low, high = self.bounds[symbol]
        return bool(np.any(low != high)) if symbol.counted else True

    def constant(self, x: Number) -> int | None:
        """Return the value of ``x`` if it is the same everywhere, else None."""
        x = self.simplified(x)
        if x.terms:
            return None
        if isinstance(x.base, int):
            return x.base
        low = int(x.base.min())
        return low if low == int(x.base.max()) else None

    def lanes_of(self, x: Number) -> Lanes | None:
        """Return the value of ``x`` in each lane; None if it depends on data.

        Raises NeedsLanes if ``x`` has several values in a lane.
        """
        x = self.simplified(x)
        self.want_values(x)
        return None if x.terms else x.base

    def want_values(self, x: Number) -> None:
        """Raise NeedsLanes if ``x`` has a counted symbol that varies in a lane.

        The statement is then interpreted again with a lane for each value of that
        symbol, or of the one with the largest coefficient.
        """
        counted = [s for s in x.terms if s.counted and self.varies(s)]
        if counted:
            symbol = max(counted, key=lambda s: abs(x.terms[s]))
            raise NeedsLanes(lambda state: state.with_lane_per_value(symbol))

    def covering(self, ranges: Iterable[tuple[int, int]]) -> Number:
        """Return an unknown number with bounds that cover all ``ranges``."""
        lows, highs = zip(*ranges, strict=True)
        return self.unknown(min(lows), max(highs))

    def unknown(self, low: Lanes, high: Lanes, *sources: Number) -> Number:
        """Return an unknown number with these bounds, as a new symbol.

        If it is computed from ``sources`` only, and these are the same for all items,
        so is the number.
        """
        low, high = _clipped(low), _clipped(high)
        same = bool(sources) and all(
            s.same for x in sources for s in self.simplified(x).terms
        )
        symbol = Symbol(counted=False, same=same)
        self.bounds[symbol] = low, high
        return Number(0, {symbol: 1})

    def counted(self, low: Lanes, high: Lanes, *, thread: bool = False) -> Number:
        """Return a new symbol as a Number; it takes each value between the bounds."""
        symbol = Symbol(counted=True, thread=thread)
        self.bounds[symbol] = low, high
        return Number(0, {symbol: 1})

    # Other lanes.

    def in_lanes(self, index: Array) -> State:
        """Return the state in the lanes ``index``, which become lanes 0, 1, 2 ..."""
        selected = self.copy()
        selected.count = index.size

        def select(x: Lanes) -> Lanes:
            """Return ``x`` in these lanes; an int is the same in all lanes."""
            return x if isinstance(x, int) else x[index]

        selected.bounds = {
            s: (select(a), select(b)) for s, (a, b) in self.bounds.items()
        }
        selected.change(lambda x: x.in_lanes(index))
        return selected

    def change(self, function: Callable[[Number], Number]) -> None:
        """Apply ``function`` to each Number in the values of variables."""
        for name, value in self.variables.items():
            self.variables[name] = changed(value, function)

    def with_lane_per_value(self, symbol: Symbol) -> State:
        """Return the state with a lane for each value of ``symbol`` in each lane.

        In the new lanes, the values of variables have the symbol's value in its place.
        Raises TooManyLanesError if there are too many lanes.
        """
        low, high = self.bounds[symbol]
        sizes = np.broadcast_to(np.asarray(high - low + 1, np.int64), (self.count,))
        total = int(sizes.sum())
        if total > MAX_LANES:
            raise TooManyLanesError
        index, values = enumerated(sizes)
        result = self.in_lanes(index)
        values = values + result.bounds[symbol][0]
        result.bounds[symbol] = values, values
        result.change(result.simplified)
        return result

    def with_digits(self, symbol: Symbol, size: int) -> State:
        """Return the state with ``symbol`` replaced by ``size * upper + lower``.

        ``upper`` and ``lower`` are new counted symbols, and ``lower`` is less than
        ``size``. The values of ``symbol`` must be 0 to a multiple of ``size`` minus 1.
        """
        low, high = self.bounds[symbol]
        assert isinstance(high, int)
        assert low == 0
        result = self.copy()
        upper = result.counted(0, high // size, thread=symbol.thread)
        lower = result.counted(0, size - 1, thread=symbol.thread)
        digits = upper.times(size).plus(lower)

        def replaced(x: Number) -> Number:
            """Return ``x`` with ``digits`` in place of ``symbol``."""
            c = x.terms.get(symbol)
            if c is None:
                return x
            others = {s: k for s, k in x.terms.items() if s is not symbol}
            return Number(x.base, others).plus(digits, c)

        result.change(replaced)
        return result

    # Conditions.

    def verdict(self, truth: Truth) -> bool | None:
        """Return True if ``truth`` holds everywhere, False if nowhere, else None."""
        if isinstance(truth, NonNegative):
            low, high = self.extremes(truth.number)
            return True if low >= 0 else False if high < 0 else None
        if isinstance(truth, (Both, Either)):
            # The verdict of one part that decides: True of "or", False of "and".
            absorbing = isinstance(truth, Either)
            verdicts = [self.verdict(truth.first), self.verdict(truth.second)]
            if absorbing in verdicts:
                return absorbing
            return None if None in verdicts else not absorbing
        return None

    def mask(self, truth: Truth) -> Array | None:
        """Return a bool for each lane: whether ``truth`` holds; None if data decide.

        Raises NeedsLanes if it differs within a lane.
        """
        if isinstance(truth, NonNegative):
            x = self.simplified(truth.number)
            low, high = self.range(x)
            holds, fails = np.asarray(low) >= 0, np.asarray(high) < 0
            if not (holds | fails).all():
                self.want_values(x)
                return None
            return np.broadcast_to(holds, (self.count,))
        if isinstance(truth, Maybe):
            return None
        first, second = self.mask(truth.first), self.mask(truth.second)
        if first is None or second is None:
            return None
        return first & second if isinstance(truth, Both) else first | second

    def split(self, truth: Truth) -> tuple[list[State], list[State]]:
        """Return (states in which ``truth`` holds, states in which it does not).

        Lanes are distributed among the states. Lanes in which data decide are in states
        of both kinds, which are not reached ``surely``. Raises NeedsLanes if it differs
        within a lane, except for one counted symbol, whose bounds are divided.
        """
        if isinstance(truth, NonNegative):
            return self._split_at_zero(truth.number)
        if isinstance(truth, Both):
            # Splitting by the first condition selects lanes. The second condition is
            # made a variable, so that it is converted to these lanes.
            name = f"${len(self.variables)}"
            with_second = self.copy()
            with_second.variables[name] = truth.second
            yes: list[State] = []
            first, no = with_second.split(truth.first)
            for state in first:
                second = state.variables[name]
                assert isinstance(second, (NonNegative, Both, Either, Maybe))
                holding, failing = state.split(second)
                yes, no = yes + holding, no + failing
            for state in (*yes, *no):
                state.variables.pop(name, None)
            return yes, no
        if isinstance(truth, Either):  # not (not x and not y)
            no, yes = self.split(negated(truth))
            return yes, no
        unsure = self.copy()
        unsure.surely = False
        return [unsure], [unsure.copy()]

    def _split_at_zero(self, x: Number) -> tuple[list[State], list[State]]:
        """Split the state by the condition ``x >= 0``, as ``split``.

        Lanes in which the condition is decided go to one side. If ``x`` depends on data
        in the other lanes, they go to both sides, with narrower bounds. If ``x`` has
        one counted symbol in them, its bounds are divided where ``x`` changes sign: for
        ``i - 3`` and i from 0 to 9, into 3 to 9 and 0 to 2.
        """
        x = self.simplified(x)
        low, high = self.range(x)
        holds, fails = np.asarray(low) >= 0, np.asarray(high) < 0
        yes, no = self._masked(holds), self._masked(fails)
        undecided = self._masked(~(holds | fails))
        if undecided is None:
            return _present(yes), _present(no)
        x = x.in_lanes(np.broadcast_to(~(holds | fails), (self.count,)))
        if any(s.thread for s in x.terms):
            undecided.divergence = Divergence.YES
        if all(not s.counted for s in x.terms):
            undecided.surely = False
            return (
                [*_present(yes), *_present(undecided.narrowed(x))],
                [*_present(no), *_present(undecided.narrowed(Number(-1).plus(x, -1)))],
            )
        if len(x.terms) > 1:
            self.want_values(x)
        ((symbol, c),) = x.terms.items()
        low, high = undecided.bounds[symbol]
        # The smallest value for which x >= 0 (c > 0: ceil(-base / c)), or the largest
        # one (c < 0: floor(base / -c)).
        border = -(x.base // c) if c > 0 else x.base // -c
        first, second = undecided.copy(), undecided.copy()
        if c > 0:
            first.bounds[symbol] = border, high
            second.bounds[symbol] = low, border - 1
        else:
            first.bounds[symbol] = low, border
            second.bounds[symbol] = border + 1, high
        return [*_present(yes), first], [*_present(no), second]

    def _masked(self, mask: Array) -> State | None:
        """Return the state in the lanes for which ``mask`` is true; None if none is.

        The state diverges if ``mask`` differs between threads of one block.
        """
        if mask.all():
            return self.copy()
        if not mask.any():
            return None
        selected = self.in_lanes(np.flatnonzero(np.broadcast_to(mask, (self.count,))))
        selected.divergence = max(selected.divergence, self.differs_in_a_block(mask))
        return selected

    def differs_in_a_block(self, values: Array) -> Divergence:
        """Return whether threads of one block have different ``values``.

        ``values`` has a value for each lane, which the lane's threads share. The result
        is PERHAPS if the blocks of the lanes are unknown, or too many to compare.
        """
        thread = self.variables.get(THREAD)
        block = self.variables.get(BLOCK)
        if not isinstance(thread, Number) or not isinstance(block, Number):
            return Divergence.NO  # not a GPU kernel: there are no blocks
        spans = [self.bounds[s] for s in thread.terms]
        if all(isinstance(x, int) for x in (thread.base, *itertools.chain(*spans))):
            # The thread's index has the same range in all lanes. So each lane stands
            # for all threads of its blocks, which share the lane's value.
            return Divergence.NO
        block = self.simplified(block)
        first_blocks = np.broadcast_to(np.asarray(block.base), (self.count,))
        values = np.broadcast_to(values, (self.count,))
        # All different pairs (block, value), sorted. A lane stands for the blocks
        # ``base + terms``: begin with the bases, and add the values of each term.
        pairs = np.unique(np.stack([first_blocks, values.astype(np.int64)]), axis=1)
        for symbol, coefficient in block.terms.items():
            low, high = self.bounds[symbol]
            if not isinstance(low, int) or not isinstance(high, int):
                return Divergence.PERHAPS
            if pairs.shape[1] * (high - low + 1) > _MAX_BLOCKS:
                return Divergence.PERHAPS
            steps = np.arange(low, high + 1) * coefficient
            blocks = (pairs[0, :, None] + steps).ravel()
            pairs = np.stack([blocks, np.repeat(pairs[1], steps.size)])
            pairs = np.unique(pairs, axis=1)
        # The pairs of a block are neighbours, and have different values.
        return (
            Divergence.YES if np.any(pairs[0, 1:] == pairs[0, :-1]) else Divergence.NO
        )

    def narrowed(self, x: Number) -> State | None:
        """Return the state where ``x >= 0``, or None if it holds nowhere.

        The bounds of each symbol that is not counted are tightened: from ``c * symbol +
        others >= 0`` follows ``symbol >= -max(others) / c`` (for positive c).
        """
        result = self.copy()
        for symbol, c in x.terms.items():
            if symbol.counted:
                continue
            others = Number(
                x.base, {s: k for s, k in x.terms.items() if s is not symbol}
            )
            maximum = self.range(others)[1]
            low, high = result.bounds[symbol]
            if c > 0:
                low = maximum_of(low, -(maximum // c))
            else:
                high = _minimum_of(high, maximum // -c)
            if np.any(np.asarray(low) > np.asarray(high)):
                return None
            result.bounds[symbol] = low, high
        return result


def enumerated(sizes: Array) -> tuple[Array, Array]:
    """Return the positions ``k`` and numbers ``n`` of all pairs with ``n < sizes[k]``.

    ``enumerated([2, 3])`` is ``([0, 0, 1, 1, 1], [0, 1, 0, 1, 2])``.
    """
    positions = np.repeat(np.arange(sizes.size), sizes)
    firsts = np.cumsum(sizes) - sizes
    return positions, np.arange(positions.size) - firsts[positions]


def changed(value: Value, function: Callable[[Number], Number]) -> Value:
    """Return ``value`` with ``function`` applied to each Number in it."""
    if isinstance(value, Number):
        return function(value)
    if isinstance(value, NonNegative):
        return NonNegative(function(value.number))
    if isinstance(value, (Both, Either)):
        first, second = (changed(v, function) for v in (value.first, value.second))
        assert not isinstance(first, (Number, Memory, Data))
        assert not isinstance(second, (Number, Memory, Data))
        return type(value)(first, second)
    if isinstance(value, Memory):
        size = None if value.size is None else function(value.size)
        return Memory(value.name, value.kind, function(value.start), size)
    return value


def _present(state: State | None) -> list[State]:
    """Return the state in a list, or an empty list for None."""
    return [] if state is None else [state]


def _clipped(x: Lanes) -> Lanes:
    """Limit ``x`` to the range from -FAR to FAR."""
    return min(max(x, -FAR), FAR) if isinstance(x, int) else x.clip(-FAR, FAR)


def _minimum_of(x: Lanes, y: Lanes) -> Lanes:
    """Return the smaller number in each lane."""
    if isinstance(x, int) and isinstance(y, int):
        return min(x, y)
    return np.minimum(x, y)


def maximum_of(x: Lanes, y: Lanes) -> Lanes:
    """Return the larger number in each lane."""
    if isinstance(x, int) and isinstance(y, int):
        return max(x, y)
    return np.maximum(x, y)
