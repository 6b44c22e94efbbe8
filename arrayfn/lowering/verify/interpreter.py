"""Finds the memory accesses of a kernel's text, for all of its work items at once.

In: a kernel's source, its integer arguments, and the numbers of items and threads. Out:
each load and store with its elements, as Numbers over symbols (see ``numbers``). The
text is interpreted abstractly: each loop's body once for all iterations. Only integers
are computed, from which indices come; other values are ``Data``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Final, Literal

import numpy as np

from arrayfn.lowering.cuda.vocabulary import FUNCTIONS
from arrayfn.lowering.verify.integers import (
    INTEGERS,
    NAME_OF_OPERATOR,
    as_dtype,
    binary,
    compared,
    evaluate_function,
    is_truth,
    joined,
    limits,
    of_data,
    truth_of,
    without_overflow,
)
from arrayfn.lowering.verify.names import Names, assignments_of, is_plain
from arrayfn.lowering.verify.numbers import (
    BLOCK,
    FAR,
    ITEM,
    Array,
    Data,
    Divergence,
    Lanes,
    Maybe,
    Memory,
    NeedsLanes,
    Number,
    State,
    Symbol,
    Truth,
    UnknownTextError,
    Value,
    maximum_of,
    negated,
)
from arrayfn.lowering.verify.vocabulary_effects import EFFECTS, Call
from arrayfn.records import frozen, record

AccessKind = Literal["load", "store", "add"]
_UNROLLED: Final = 64
"""The most iterations of a loop with carried values that are interpreted one by one."""
_MAX_ROUNDS: Final = 12  # of widening, until bounds of carried values hold


@frozen(slots=True, eq=False)
class Access:
    """An access of elements ``at`` to ``at + width - 1``, in ``count`` lanes.

    A lane is a case that is analysed separately, see ``Interpreter``.

    Attributes:
        memory: the argument or local array.
        kind: a load, a store, or an atomic addition.
        at: the index of the first element, from the start of the argument.
        width: the number of neighbouring elements.
        bounds: the minimum and maximum of each symbol.
        count: the number of lanes.
        item: the work item, or the thread of the grid; None if unknown.
        block: the block of the thread, on a GPU.
        surely: whether the access happens whatever the data.
        line: the line in the kernel.
        aligned: whether the index must be a multiple of the width (up to 16 bytes).
    """

    memory: Memory
    kind: AccessKind
    at: Number
    width: int
    bounds: dict[Symbol, tuple[Lanes, Lanes]]
    count: int
    item: Number | None
    block: Number | None
    surely: bool
    line: int
    aligned: bool = False


@frozen
class Barrier:
    """A barrier on a line that, ``surely`` or perhaps, some threads do not reach."""

    line: int
    surely: bool


@record
class Interpreted:
    """The accesses of a kernel, its divergent barriers, and lines not understood.

    ``unknown`` says, by line, what was not understood.
    """

    accesses: list[Access] = field(default_factory=list[Access])
    barriers: list[Barrier] = field(default_factory=list[Barrier])
    unknown: dict[int, str] = field(default_factory=dict[int, str])


class Interpreter:
    """An abstract interpreter of the function ``name`` of a kernel's ``source``.

    It computes with symbolic integers, for all work items at once. A state has one or
    more *lanes*: cases that are analysed separately, each with concrete numbers where
    symbols do not suffice. A *counted* symbol takes each value between its bounds,
    other symbols are unknown numbers with bounds. An access or a barrier happens
    *surely* if it happens whatever the data are.

    Attributes:
        functions: the functions of the text, by name.
        state: the state before the function: its arguments.
        result: the accesses and barriers so far.
        pending: accesses of the current statement, which may be interpreted again with
            more lanes.
        names: which variables statements set and read.
        elements: the symbols of single elements of read-only arrays, by array and
            index.
        stored: the names of arrays that the text writes by ``array[i] = x``.
        dry_runs: while above 0, accesses and barriers are not recorded.
        depth: how many unrolled loops the current statement is in.
    """

    def __init__(self, source: str, name: str, state: State) -> None:
        """Parse ``source``; ``state`` has the arguments of the function ``name``.

        Raises UnknownTextError if ``source`` has more than functions and imports, which
        might give the functions that kernels call another meaning.
        """
        tree = ast.parse(source)
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef) and not _is_own_import(node):
                raise UnknownTextError(ast.unparse(node))
        self.functions = {
            f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)
        }
        self.name = name
        self.state = state
        self.result = Interpreted()
        self.pending: list[Access] = []
        self.names = Names()
        self.elements: dict[tuple[str, int], Symbol] = {}
        self.stored = {
            n.value.id
            for n in ast.walk(tree)
            if isinstance(n, ast.Subscript)
            and isinstance(n.ctx, ast.Store)
            and isinstance(n.value, ast.Name)
        }
        self.dry_runs = 0
        self.depth = 0

    def run(self) -> Interpreted:
        """Interpret the function; return its accesses and barriers."""
        if BLOCK not in self.state.variables:  # on a CPU
            self.result.unknown |= self.uses_of_the_split()
        self.block(self.functions[self.name].body, self.state)
        return self.result

    def uses_of_the_split(self) -> dict[int, str]:
        """Return the lines of a CPU's kernel that depend on how its items are split.

        A runtime calls the kernel for parts of the items, the analysis only for all of
        them. So a kernel may do nothing with ``begin`` and ``end`` but loop over them,
        or pass them to a function of the text that does.
        """
        lines: dict[int, str] = {}
        for function in self.functions.values():
            nodes = list(ast.walk(function))
            allowed = {
                id(argument)
                for node in nodes
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                for argument, name in zip(
                    node.args, self.parameters_of(node.func.id), strict=False
                )
                if isinstance(argument, ast.Name) and argument.id == name
            }
            lines |= {
                node.lineno: f"{node.id} is used besides the range"
                for node in nodes
                if isinstance(node, ast.Name)
                and node.id in ("begin", "end")
                and id(node) not in allowed
            }
        return lines

    def parameters_of(self, name: str) -> list[str]:
        """Return the parameters of ``range``, or of a function of the text."""
        if name == "range":
            return ["begin", "end"]
        function = self.functions.get(name)
        return [a.arg for a in function.args.args] if function else []

    # Statements.

    def block(self, nodes: Iterable[ast.stmt], state: State) -> State:
        """Interpret the statements ``nodes``; return the state after them."""
        for node in nodes:
            state = self.statement(node, state)
        return state

    def statement(self, node: ast.stmt, state: State) -> State:
        """Interpret ``node`` and record its accesses; return the state after it.

        If ``node`` needs more lanes, it is interpreted again in a state that has them.
        """
        while True:
            try:
                state = self.attempt(node, state)
            except NeedsLanes as needed:
                self.pending.clear()
                state = needed.change(state)
                continue
            self.flush()
            return state

    def attempt(self, node: ast.stmt, state: State) -> State:
        """Interpret ``node`` once; return the state after it, which may be ``state``.

        Raises NeedsLanes if it needs more lanes, and UnknownTextError for a statement
        that kernels do not have.
        """
        if isinstance(node, ast.Assign):
            (target,) = node.targets
            value = self.evaluate(node.value, state)
            if isinstance(target, ast.Name):
                state.variables[target.id] = value
            elif isinstance(target, ast.Subscript):
                self.access(target, "store", state)
            else:
                raise UnknownTextError(ast.unparse(node))
        elif isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):
                self.evaluate(node.value, state)
        elif isinstance(node, ast.If):
            return self.branch(node, state)
        elif isinstance(node, ast.For):
            return self.loop(node, state)
        elif isinstance(node, ast.While):
            return self.while_loop(node, state)
        elif not isinstance(node, ast.Pass):
            raise UnknownTextError(ast.unparse(node))
        return state

    def flush(self) -> None:
        """Move the pending accesses to the result, or drop them in a dry run.

        Called after all expressions that may raise NeedsLanes have been evaluated.
        """
        if not self.dry_runs:
            self.result.accesses += self.pending
        self.pending.clear()

    def branch(self, node: ast.If, state: State) -> State:
        """Interpret both branches of an ``if``, each in the states that take it.

        Returns the merged state, or the only state if all take one branch.
        """
        truth = self.truth(node.test, state)
        yes, no = state.split(truth)
        self.flush()
        if not no and len(yes) == 1:
            return self.block(node.body, yes[0])
        if not yes and len(no) == 1:
            return self.block(node.orelse, no[0])
        ends = [self.block(node.body, part) for part in yes]
        ends += [self.block(node.orelse, part) for part in no]
        return self.merged(state, [*node.body, *node.orelse], ends)

    def merged(
        self, before: State, body: Sequence[ast.stmt], ends: Sequence[State]
    ) -> State:
        """Merge the states ``ends`` in which ``body`` ends; return the state after it.

        The result has the lanes of ``before``. A variable that ``body`` sets gets a
        value that covers its values in ``ends`` and ``before``.
        """
        after = before.copy()
        for name in self.names.set_in(body):
            values = [e.variables[name] for e in (*ends, before) if name in e.variables]
            if values:
                after.variables[name] = self.hull(name, values, [*ends, before], after)
        return after

    def hull(
        self, name: str, values: Sequence[Value], states: Sequence[State], into: State
    ) -> Value:
        """Return a value, in state ``into``, that covers ``name`` in all ``states``.

        ``values`` are its values in those of the states that have it. Integers are
        covered by an unknown number with their bounds.
        """
        if all(isinstance(v, Number) for v in values):
            ranges = [
                s.extremes(v)
                for s in states
                if isinstance(v := s.variables.get(name), Number)
            ]
            return into.covering(ranges)
        if all(is_truth(v) for v in values):
            return Maybe()
        first = into.variables.get(name)
        if isinstance(first, Memory) and all(v is first for v in values):
            return first
        return Data()

    # Loops.

    def loop(self, node: ast.For, state: State) -> State:
        """Interpret a ``for`` loop over a range.

        The body is interpreted once for all iterations: the loop's variable is a
        counted symbol, and carried variables have values that cover all iterations.
        Short loops that carry variables are unrolled instead, if that is cheap, or if a
        carried variable is an array. Returns the state after the loop.
        """
        assert isinstance(node.target, ast.Name)
        assert isinstance(node.iter, ast.Call)
        if node.orelse or ast.unparse(node.iter.func) not in ("range", "unrolled"):
            raise UnknownTextError(ast.unparse(node))
        bounds = [self.number(a, state) for a in node.iter.args]
        start, stop = (Number(0), bounds[0]) if len(bounds) == 1 else bounds[:2]
        step = state.constant(bounds[2]) if len(bounds) > 2 else 1
        if not step:
            raise UnknownTextError(f"a step of {ast.unparse(node.iter)}")
        # On a CPU, the loop over range(begin, end) is the one over work items.
        is_items = [ast.unparse(a) for a in node.iter.args] == ["begin", "end"]
        inner = state.copy()
        span = stop.plus(start, -1).times(1 if step > 0 else -1)
        extent = inner.lanes_of(span)
        self.flush()
        entered = _entered(inner, start, span, extent, abs(step))
        if entered is None:
            return state
        inner, start, index, trip_count = entered
        carried = self.carried(node.body, inner, node.target.id)
        has_arrays = any(isinstance(inner.variables[x], Memory) for x in carried)
        if (
            carried
            and trip_count is not None
            and 1 < trip_count <= _UNROLLED
            and inner.count == state.count
            and (is_plain(node.body) or has_arrays)
        ):
            return self.unrolled(node, inner, start, step, trip_count)
        variable = start.plus(index, step)
        inner.variables[node.target.id] = variable
        if is_items and ITEM not in inner.variables:
            inner.variables[ITEM] = variable
        if carried and trip_count != 1:
            self.advance(node.body, inner, carried, index)
        end = self.block(node.body, inner.copy())
        if trip_count == 1 and inner.count == state.count:
            return end
        # ``node`` is listed too, because it sets the loop's variable.
        return self.merged(state, [*node.body, node], [end])

    def advance(
        self,
        body: Sequence[ast.stmt],
        state: State,
        carried: Sequence[str],
        index: Number,
    ) -> None:
        """Give ``carried`` variables their values at iteration ``index`` of a loop.

        A variable that grows by a constant ``rate`` gets the value ``start + rate *
        index``, others get bounds that hold in all iterations.
        """
        rates = self.rates(body, state, carried)
        others: list[str] = []
        for name in carried:
            value = state.variables[name]
            if name in rates and isinstance(value, Number):
                state.variables[name] = value.plus(index, rates[name])
            else:
                others.append(name)
        self.widen(body, state, others)

    def unrolled(
        self, node: ast.For, state: State, start: Number, step: int, iterations: int
    ) -> State:
        """Interpret a ``for`` loop iteration by iteration; return the state after it.

        The loop's variable is ``start``, ``start + step``, and so on.
        """
        assert isinstance(node.target, ast.Name)
        # As a variable, ``start`` is converted when an iteration changes the lanes.
        name = "$start" + str(self.depth)
        state.variables[name] = start
        self.depth += 1
        for iteration in range(iterations):
            begin = state.variables[name]
            assert isinstance(begin, Number)
            state.variables[node.target.id] = begin.plus(Number(iteration * step))
            state = self.block(node.body, state)
        self.depth -= 1
        return state

    def while_loop(self, node: ast.While, state: State) -> State:
        """Interpret a ``while`` loop: its body once, with widened carried values.

        Accesses of the body do not surely happen. Carried integers have the widened
        bounds after the loop.
        """
        if node.orelse:
            raise UnknownTextError(ast.unparse(node))
        inner = state.copy()
        carried = self.carried([node], inner, variable="")
        # As a branch, the body is interpreted in the states in which it runs.
        self.widen([*_as_branch(node)], inner, carried)
        truth = self.truth(node.test, inner)
        yes, _ = inner.split(truth)
        self.flush()
        ends: list[State] = []
        for part in yes:
            part.surely = False
            ends.append(self.block(node.body, part))
        after = self.merged(state, node.body, ends or [inner])
        for name in carried:
            value = inner.variables[name]
            if isinstance(value, Number):
                after.variables[name] = after.unknown(*inner.extremes(value))
        return after

    def carried(
        self, body: Sequence[ast.stmt], state: State, variable: str
    ) -> list[str]:
        """Return the variables that an iteration may read from the iteration before.

        ``body`` is the loop's body, ``state`` the state before the loop, and
        ``variable`` the name of the loop's own variable. Only variables whose values
        indices can depend on count.
        """
        return [
            name
            for name in self.names.set_in(body)
            if name != variable
            and (value := state.variables.get(name)) is not None
            and (isinstance(value, (Number, Memory)) or is_truth(value))
            and not self.names.is_set_first(name, body)
        ]

    def rates(
        self, body: Sequence[ast.stmt], state: State, carried: Sequence[str]
    ) -> dict[str, int]:
        """Return the increments of carried variables that grow by a constant.

        ``body``, which begins in ``state``, changes such a variable once, by ``name =
        name + constant``, and does not read it after that.
        """
        increments: dict[str, int] = {}
        for name in carried:
            added = self.added_once(body, name)
            if added is None:
                continue
            try:
                rate = state.constant(self.number(added, state))
            except NeedsLanes:
                continue
            if rate is not None:
                increments[name] = rate
        return increments

    def added_once(self, body: Sequence[ast.stmt], name: str) -> ast.expr | None:
        """Return the expression that ``body`` adds to ``name`` in its only change.

        Returns None if the change is not ``name = name + expression`` at the top level
        of ``body``, if ``body`` sets a variable of the expression, or if a statement
        after the change reads ``name``. All statements then see the value before the
        change.
        """
        changes = assignments_of(body, name)
        if len(changes) != 1 or changes[0] not in body:
            return None
        (change,) = changes
        assert isinstance(change, ast.Assign)
        value = change.value
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
            return None
        left, right = value.left, value.right
        if isinstance(right, ast.Name) and right.id == name:
            left, right = right, left
        if not isinstance(left, ast.Name) or left.id != name:
            return None
        if {n.id for n in ast.walk(right) if isinstance(n, ast.Name)} & {
            *self.names.set_in(body)
        }:
            return None
        later = body[body.index(change) + 1 :]
        return None if any(name in self.names.read_in(s) for s in later) else right

    def widen(
        self, body: Sequence[ast.stmt], state: State, carried: Sequence[str]
    ) -> None:
        """Give ``carried`` variables bounds that hold in all iterations.

        The body is interpreted, without recording accesses, until the bounds stop
        growing. After two rounds, a bound that grows jumps to the next of a few values:
        the initial bounds, 0 and +-FAR (widening, as in abstract interpretation). If
        the bounds still grow after _MAX_ROUNDS, they become +-FAR. Carried conditions
        become Maybe.
        """
        if not carried:
            return
        spans: dict[str, tuple[int, int]] = {}
        for name in carried:
            value = state.variables[name]
            if isinstance(value, Number):
                spans[name] = state.extremes(value)
            else:
                state.variables[name] = Maybe() if is_truth(value) else Data()
        steps = sorted({x for span in spans.values() for x in span} | {0, FAR, -FAR})
        for number in range(_MAX_ROUNDS):
            for name, (low, high) in spans.items():
                state.variables[name] = state.unknown(low, high)
            self.dry_runs += 1
            end = self.block(body, state.copy())
            self.dry_runs -= 1
            grown = False
            for name, (low, high) in spans.items():
                value = end.variables[name]
                first, last = (
                    end.extremes(value) if isinstance(value, Number) else (-FAR, FAR)
                )
                if number >= 2:
                    first = max((x for x in steps if x <= first), default=-FAR)
                    last = min((x for x in steps if x >= last), default=FAR)
                if first < low or last > high:
                    grown = True
                    spans[name] = min(low, first), max(high, last)
            if not grown:
                return
        for name in spans:
            state.variables[name] = state.unknown(-FAR, FAR)

    # Expressions.

    def truth(self, node: ast.expr, state: State) -> Truth:
        """Evaluate an expression as a condition."""
        return truth_of(self.evaluate(node, state))

    def number(self, node: ast.expr, state: State) -> Number:
        """Evaluate an expression as an integer, which is unknown for other values."""
        value = self.evaluate(node, state)
        return value if isinstance(value, Number) else state.unknown(-FAR, FAR)

    def evaluate(self, node: ast.expr, state: State) -> Value:
        """Evaluate an expression, and record its accesses.

        Raises NeedsLanes, and UnknownTextError for an expression that kernels do not
        have.
        """
        if isinstance(node, ast.Constant):
            if isinstance(node.value, (bool, int)):
                return without_overflow(Number(int(node.value)), state)
            return Data()
        if isinstance(node, ast.Name):
            return state.variables.get(node.id, Data())
        if isinstance(node, ast.BinOp):
            left, right = (self.evaluate(x, state) for x in (node.left, node.right))
            if isinstance(left, Number) and isinstance(right, Number):
                value = binary(type(node.op).__name__, left, right, state)
                grows = isinstance(node.op, (ast.Mult, ast.LShift, ast.Pow))
                if grows and isinstance(value, Number):
                    return without_overflow(value, state)
                return value
            return Data()
        if isinstance(node, ast.UnaryOp):
            value = self.evaluate(node.operand, state)
            if isinstance(node.op, ast.Not):
                return negated(truth_of(value))
            if isinstance(node.op, ast.USub) and isinstance(value, Number):
                return value.times(-1)
            return Data()
        if isinstance(node, ast.Compare):
            values = [self.evaluate(x, state) for x in (node.left, *node.comparators)]
            return compared([NAME_OF_OPERATOR[type(op)] for op in node.ops], values)
        if isinstance(node, ast.BoolOp):
            truths = [self.truth(x, state) for x in node.values]
            return joined(truths, either=isinstance(node.op, ast.Or))
        if isinstance(node, ast.IfExp):
            return self.conditional(node, state)
        if isinstance(node, ast.Subscript):
            return self.access(node, "load", state)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self.call(node.func.id, node, state)
        raise UnknownTextError(ast.unparse(node))

    def conditional(self, node: ast.IfExp, state: State) -> Value:
        """Evaluate ``x if condition else y``: x in the states where it holds, else y.

        If both happen, the result covers both values.
        """
        yes, no = state.split(self.truth(node.test, state))
        values = [(s, self.evaluate(node.body, s)) for s in yes]
        values += [(s, self.evaluate(node.orelse, s)) for s in no]
        if len(values) == 1:
            ((only_state, value),) = values
            state.bounds.update(only_state.bounds)  # of new symbols in the value
            return value
        ranges = [s.extremes(v) for s, v in values if isinstance(v, Number)]
        if len(ranges) < len(values):
            return Maybe() if all(is_truth(v) for _, v in values) else Data()
        return state.covering(ranges)

    def chosen(self, truth: Truth, x: Value, y: Value, state: State) -> Value:
        """Return the value of ``select(truth, x, y)``, whose operands are evaluated.

        If ``truth`` holds everywhere or nowhere, this is x or y. If x and y are
        constants, and ``truth`` is known in each lane, it is a choice in each lane.
        Otherwise it is an unknown number with bounds that cover x where ``truth`` holds
        and y where it does not.
        """
        verdict = state.verdict(truth)
        if verdict is not None:
            return x if verdict else y
        if isinstance(x, Number) and isinstance(y, Number):
            first, second = state.constant(x), state.constant(y)
            if first is not None and second is not None:
                mask = state.mask(truth)
                if mask is not None:
                    return Number(np.where(mask, first, second))
            # Splitting a state converts its variables, so x and y are made variables.
            state.variables["$x"], state.variables["$y"] = x, y
            yes, no = state.split(truth)
            del state.variables["$x"], state.variables["$y"]
            ends = [*((s, "$x") for s in yes), *((s, "$y") for s in no)]
            return state.covering(
                s.extremes(v)
                for s, name in ends
                if isinstance(v := s.variables[name], Number)
            )
        return Maybe() if is_truth(x) and is_truth(y) else Data()

    def access(
        self, node: ast.Subscript, kind: AccessKind, state: State, width: int = 1
    ) -> Value:
        """Record an access ``array[index]``; return the value that a load gives."""
        memory = self.evaluate(node.value, state)
        at = self.number(node.slice, state)
        return self.record(memory, at, kind, state, node.lineno, width)

    def record(
        self,
        memory: Value,
        at: Number,
        kind: AccessKind,
        state: State,
        line: int,
        width: int = 1,
        *,
        aligned: bool = False,
    ) -> Value:
        """Record an access of ``memory`` at index ``at``; return the loaded value.

        ``width`` neighbouring elements are accessed; if ``aligned``, the first index
        must be a multiple of ``width``. ``line`` is the line of the kernel. An access
        of a value that is no array is recorded as not understood.
        """
        if not isinstance(memory, Memory):
            self.result.unknown[line] = "an access of what is no array"
            return Data()
        item = state.variables.get(ITEM)
        block = state.variables.get(BLOCK)
        self.pending.append(
            Access(
                memory,
                kind,
                state.simplified(memory.start.plus(at)),
                width,
                dict(state.bounds),
                state.count,
                item if isinstance(item, Number) else None,
                block if isinstance(block, Number) else None,
                state.surely,
                line,
                aligned,
            )
        )
        return self.loaded(memory, at, state)

    def loaded(self, memory: Memory, at: Number, state: State) -> Value:
        """Return the value loaded from ``memory`` at index ``at``.

        Integers are unknown numbers of their dtype. If all items load the same element,
        and the text does not write the array, all loads of it give one symbol.
        """
        if memory.kind not in INTEGERS:
            return Data()
        low, high = limits(memory.kind)
        index = state.constant(memory.start.plus(at))
        if index is None or memory.size is not None or memory.name in self.stored:
            return state.unknown(low, high)
        key = memory.name, index
        if key not in self.elements:
            self.elements[key] = Symbol(counted=False, same=True)
        symbol = self.elements[key]
        state.bounds.setdefault(symbol, (low, high))
        return Number(0, {symbol: 1})

    def barrier(self, line: int, state: State) -> None:
        """Record a barrier on ``line`` that some threads of a block may not reach.

        A barrier that all threads reach, and any in a dry run, is not recorded.
        """
        if (state.divergence or not state.surely) and not self.dry_runs:
            surely = state.surely and state.divergence is Divergence.YES
            self.result.barriers.append(Barrier(line, surely))

    # Calls.

    def call(self, name: str, node: ast.Call, state: State) -> Value:
        """Evaluate a call of the function ``name``, and record its effects.

        ``name`` is a function that the kernel's source defines, a device function of
        CUDA (see ``EFFECTS``), a function of integers or conditions (see
        ``evaluate_function``), ``select``, or a function of rows. All others compute
        data.
        """
        if name in self.functions:
            return self.call_local(self.functions[name], node, state)
        function = FUNCTIONS.get(name)
        if function is not None:
            effect = EFFECTS.get(function.kind)
            if effect is not None:
                return effect(Call(self, function, node, state))
            for argument in node.args:
                self.evaluate(argument, state)
            if function.dtype in INTEGERS:
                return state.unknown(*limits(function.dtype))
            return Data()
        kind, _, suffix = name.rpartition("_")  # "min" and "i64" of ``min_i64``
        values = [self.evaluate(x, state) for x in node.args]
        if name in state.variables:
            raise UnknownTextError(ast.unparse(node))
        if name in INTEGERS and values:  # a cast, as ``i64(x)``
            value = values[0]
            return as_dtype(value, name, state) if isinstance(value, Number) else value
        if kind == "select":
            return self.chosen(truth_of(values[0]), values[1], values[2], state)
        value = evaluate_function(kind, suffix, values, state)
        if value is not None:
            return value
        if name == "store_row":
            return self.rows(node, values, state)
        if name == "prefetch_row":
            return Data()
        if any(isinstance(v, Memory) for v in values):
            self.result.unknown[node.lineno] = f"what {name} does with an array"
        return of_data(name)

    def rows(self, node: ast.Call, values: Sequence[Value], state: State) -> Value:
        """Record the accesses of ``store_row(target, begin, source, count, far)``."""
        target, begin, source, count = values[:4]
        assert isinstance(begin, Number)
        assert isinstance(count, Number)
        self.copy_elements(
            (source, Number(0)), (target, begin), count, node.lineno, state
        )
        return Data()

    def copy_elements(
        self,
        source: tuple[Value, Number],
        target: tuple[Value, Number],
        count: Number,
        line: int,
        state: State,
    ) -> None:
        """Record a copy of ``count`` neighbouring elements, as a load and a store.

        ``source`` and ``target`` are pairs of an array and an index. If ``count``
        depends on data, the accesses do not surely happen.
        """
        size = state.lanes_of(count)
        inner = state.copy()
        if size is None:
            inner.surely = False
            index = inner.unknown(0, inner.range(count)[1])
        else:
            copies = np.asarray(size) > 0
            if not copies.any():
                return
            index = inner.counted(0, maximum_of(size - 1, 0))
            if not copies.all():
                inner.surely = False
        self.record(source[0], source[1].plus(index), "load", inner, line)
        self.record(target[0], target[1].plus(index), "store", inner, line)

    def call_local(
        self, function: ast.FunctionDef, node: ast.Call, state: State
    ) -> Value:
        """Interpret a call of another function of the text, whose result is Data."""
        values = [self.evaluate(x, state) for x in node.args]
        self.flush()
        inner = state.copy()
        # The work item, block and thread are known inside the function too.
        internal = {k: v for k, v in state.variables.items() if k[0] == "$"}
        names = [a.arg for a in function.args.args]
        inner.variables = {**internal, **dict(zip(names, values, strict=True))}
        self.block(function.body, inner)
        return Data()


def _is_own_import(node: ast.stmt) -> bool:
    """Whether ``node`` imports functions of arrayfn or Numba under their names."""
    return (
        isinstance(node, ast.ImportFrom)
        and str(node.module).split(".")[0] in ("arrayfn", "numba")
        and not any(alias.asname for alias in node.names)
    )


def _entered(
    state: State, start: Number, span: Number, extent: Lanes | None, step: int
) -> tuple[State, Number, Number, int | None] | None:
    """Return the state in the body of a ``for`` loop, for all iterations at once.

    Returns (the state in the lanes that enter the loop, ``start`` in these lanes, the
    number of the iteration, the trip count if it is one known number or else None), or
    None if no lane enters.

    Args:
        state: the state before the loop, which may be changed.
        start: the first value of the loop's variable.
        span: the end of the range minus ``start``, or the reverse if the variable
            decreases.
        extent: ``span`` in each lane; None if it depends on data.
        step: how far the variable goes in an iteration, positive.
    """
    if extent is None:
        _, high = state.range(span)
        most = -(-maximum_of(high, 0) // step)  # iterations, rounded up
        if not np.any(np.asarray(most) > 0):
            return None
        index = state.unknown(0, maximum_of(most - 1, 0))
        state.surely = False
        return state, start, index, None
    trip_count = -(-extent // step)
    runs = np.asarray(trip_count) > 0
    if not runs.any():
        return None
    if not runs.all():
        state, running = _running(state, runs)
        start = start.in_lanes(running)
        if not isinstance(trip_count, int):
            trip_count = trip_count[running]
    if isinstance(trip_count, int):
        index = Number(0) if trip_count == 1 else state.counted(0, trip_count - 1)
        return state, start, index, trip_count
    state.divergence = max(state.divergence, state.differs_in_a_block(trip_count))
    return state, start, state.counted(0, trip_count - 1), None


def _running(state: State, runs: Array) -> tuple[State, Array]:
    """Return ``state`` in the lanes in which a loop runs at all, and these lanes.

    ``runs`` has a bool for each lane, or one for all. The state diverges if threads of
    a block differ in it.
    """
    lanes = np.flatnonzero(np.broadcast_to(runs, (state.count,)))
    divergence = state.differs_in_a_block(runs)
    running = state.in_lanes(lanes)
    running.divergence = max(running.divergence, divergence)
    return running, lanes


def _as_branch(node: ast.While) -> Sequence[ast.stmt]:
    """Return an ``if`` statement that is one iteration of a ``while`` loop."""
    branch = ast.If(node.test, node.body, [])
    return [ast.copy_location(branch, node)]
