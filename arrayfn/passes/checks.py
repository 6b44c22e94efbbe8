"""Inserts checks of indices and numbers into a Program.

``with_checks`` returns a Program with one more result, a *fault* (see ``faults``), and
the sites that faults refer to. Conditions that the user asserts (``check``) are always
among them; the values for their messages are results before the fault. Numbers are
checked as by NumPy's ``errstate``: NaN is a fault if no operand is NaN, an infinity if
all operands are finite. NaN and infinities among arguments and constants are no faults.
Values that no result depends on are not checked.

Loops and branches return a fault too. A loop returns the fault of the first iteration
that has one, and a ``while_loop`` ends there. Calls are checked inside their bodies,
except for those that a registered kernel computes: their results are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from arrayfn import dtypes
from arrayfn.ir import ArrayType, Atom, Equation, Literal, Program, Var
from arrayfn.ir.builder import ProgramBuilder, current_builder, rename
from arrayfn.passes.checks_in_loops import LOOPS, NO_FAULT_LITERAL
from arrayfn.passes.faults import (
    CHECK,
    DETAIL_BITS,
    DIVISION,
    INDEX,
    INF,
    MAX_INDEX,
    NAN,
    NO_FAULT,
    Site,
)
from arrayfn.primitives import conversion, discrete, indexing, reductions, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.assertions import check, has_check
from arrayfn.primitives.base import Body, Composition, primitive_of
from arrayfn.primitives.bounds import in_bounds
from arrayfn.primitives.calls import expansion
from arrayfn.transforms.dce import dce

_DIVISIONS: Final = frozenset(
    (e.div, e.reciprocal, e.floor_divide, e.remainder, e.fmod)
)
_BAD_RESULTS: Final = (
    (NAN, discrete.isnan, discrete.isnan),
    (INF, discrete.isinf, lambda x: discrete.bitwise_not(discrete.isfinite(x))),
)
"""(kind, test of results, test of operands that excuse the result)."""
_MOVES: Final = frozenset(("view", "structure", "sorting"))
"""Families whose results are copies of elements of their operands."""


def with_checks(
    program: Program,
    kinds: AbstractSet[str],
    is_whole: Callable[[Equation], bool],
    *,
    asserted: bool = True,
) -> tuple[Program, tuple[Site, ...]]:
    """Add a fault to the results of ``program``; also return the sites of its checks.

    Without anything to check, ``program`` is returned as it is, with no sites. ``y = x
    / z`` with ``kinds={"division"}`` becomes ``y = x / z; fault = min(select(z == 0,
    position + (site << 40), NO_FAULT))``. Before the fault are the values of the user's
    checks, in the order of the sites. The bodies of calls that ``is_whole`` accepts,
    such as those with a registered kernel, are not entered. Unless ``asserted``, the
    user's checks are left where they are.
    """
    if not kinds and not (asserted and has_check(program)):
        return program, ()
    checker = _Checker(kinds, is_whole, asserted)
    checked = checker.checked(dce(program))
    if checked is None:
        return program, ()
    return checked, tuple(checker.sites)


class _Checker:
    """Inserts checks into Programs, and numbers their sites.

    ``kinds``, ``is_whole`` and ``asserted`` are those of ``with_checks``. ``sites``
    grows with each check; a site's number is its index.
    """

    def __init__(
        self,
        kinds: AbstractSet[str],
        is_whole: Callable[[Equation], bool],
        asserted: bool,
    ) -> None:
        self.kinds = kinds
        self.is_whole = is_whole
        self.asserted = asserted
        self.sites: list[Site] = []

    def checked(self, program: Program) -> Program | None:
        """Append the values of the user's checks, and a fault, to the outputs.

        None if ``program`` has nothing to check.
        """
        site_count = len(self.sites)
        with ProgramBuilder(program.name) as builder:
            inputs = builder.inputs_of(program)
            environment = builder.bind_inputs(program, inputs)
            values_and_fault = self.emit(program, environment)
        if len(self.sites) == site_count:
            return None
        outputs = [rename(a, environment) for a in program.outputs]
        return builder.build([*outputs, *values_and_fault])

    def emit(self, program: Program, environment: dict[Var, Atom]) -> list[Atom]:
        """Emit ``program`` together with checks of its equations.

        ``environment`` has the new Atom of each input. The new Atoms of all other Vars
        are added to it. Returns the values of the user's checks, then the first fault.
        """
        builder = current_builder()
        faults: list[Atom] = []
        all_values: list[Atom] = []
        for equation in program.equations:
            builder.source = equation.source
            primitive = primitive_of(equation)
            operands = [rename(a, environment) for a in equation.inputs]
            values: Sequence[Atom] = ()
            # in_bounds and check are replaced by their faults; other equations stay.
            if primitive is in_bounds:
                results: Sequence[Atom] = operands
                own_faults = self._index_faults(operands[0], equation)
            elif primitive is check and self.asserted:
                results = ()
                _, *values = operands
                own_faults = self._condition_faults(operands[0], equation)
            elif primitive in LOOPS:
                results, (*values, fault) = LOOPS[primitive](self, equation, operands)
                own_faults = [fault]
            elif (body := self._entered(equation)) is not None:
                environment.update(builder.bind_inputs(body, operands))
                *values, fault = self.emit(body, environment)
                results = [rename(a, environment) for a in body.outputs]
                own_faults = [fault]
            else:
                results = builder.keep(equation, operands)
                own_faults = self._number_faults(equation, operands, results)
            environment.update(zip(equation.outputs, results, strict=True))
            all_values += values
            faults += own_faults
        return [*all_values, _smallest(faults)]

    def _entered(self, equation: Equation) -> Program | None:
        """Return the Program inside ``equation`` that is checked in its place, or None.

        That is the body of a call that no kernel computes as a whole, or the expansion
        of a Composition that holds Programs.
        """
        kernel = primitive_of(equation).kernel
        if isinstance(kernel, Body) and "body" in equation.params:
            if not self.is_whole(equation):
                return equation.params["body"]
        elif equation.subprograms() and isinstance(kernel, Composition):
            given = [a if isinstance(a, Literal) else a.type for a in equation.inputs]
            return _with_literals(expansion(equation, given), equation.inputs)
        return None

    def _condition_faults(self, condition: Atom, equation: Equation) -> list[Atom]:
        """Emit the fault of a user's ``check``: where its ``condition`` is false.

        Adds a site. Returns no fault if the condition has no elements.
        """
        params, type = equation.params, _plain(condition.type)
        site = Site(
            CHECK,
            params["message"],
            type,
            equation.source,
            names=params["names"],
            loops=params["loops"],
        )
        if 0 in type.shape:
            self.sites.append(site)
            return []
        bad = discrete.bitwise_not(condition)
        return [self._fault([(site, bad)], _positions(type))]

    def _index_faults(self, index: Atom, equation: Equation) -> list[Atom]:
        """Emit the fault of the ``index`` of an ``in_bounds`` equation, if checked.

        Returns a list of one fault, or an empty one. A negative index counts from the
        end, except where a slice of ``length`` elements begins.
        """
        if INDEX not in self.kinds or 0 in index.type.shape:
            return []
        params: dict[str, Any] = dict(equation.params)
        extent, length = params["extent"], params["length"]
        low, high = (0, extent - length) if length else (-extent, extent - 1)
        value = _as_int64(index)
        is_outside = discrete.bitwise_or(
            discrete.lt(value, low), discrete.gt(value, high)
        )
        site = Site(INDEX, "index", index.type, equation.source, **params)
        clamped = e.minimum(e.maximum(value, -MAX_INDEX), MAX_INDEX)
        return [self._fault([(site, is_outside)], e.add(clamped, MAX_INDEX))]

    def _number_faults(
        self, equation: Equation, operands: Sequence[Atom], results: Sequence[Atom]
    ) -> list[Atom]:
        """Emit the faults of an equation: divisors of 0, and results not finite.

        Equations that move elements, and those with effects, have no results to check.
        """
        primitive = primitive_of(equation)
        faults: list[Atom] = []
        if primitive in _DIVISIONS and DIVISION in self.kinds:
            faults += self._divisor_faults(operands[-1], equation)
        is_copy = primitive.family in _MOVES or primitive is indexing.gather
        if is_copy or primitive.effect:
            return faults
        for result in results:
            if result.type.dtype in dtypes.INEXACT and 0 not in result.type.shape:
                cases = self._bad_results(equation, operands, result)
                if cases:
                    faults.append(self._fault(cases, _positions(result.type)))
        return faults

    def _bad_results(
        self, equation: Equation, operands: Sequence[Atom], result: Atom
    ) -> list[tuple[Site, Atom]]:
        """Return the sites for NaN and infinities in ``result``, each with a mask.

        The mask marks the bad elements. NaN does not count if it is computed from NaN,
        nor an infinity if it is computed from what is not finite. In an equation that
        is not elementwise, one such operand element excuses all of ``result``.
        """
        primitive = primitive_of(equation)
        is_elementwise = primitive.family == "elementwise"
        cases: list[tuple[Site, Atom]] = []
        for kind, is_bad, excuses in _BAD_RESULTS:
            if kind not in self.kinds:
                continue
            is_fault = is_bad(result)
            for x in operands:
                if x.type.dtype in dtypes.INEXACT:
                    excuse = excuses(x) if is_elementwise else _any(excuses(x))
                    no_excuse = discrete.bitwise_not(excuse)
                    is_fault = discrete.bitwise_and(is_fault, no_excuse)
            site = Site(
                kind,
                primitive.name,
                _plain(result.type),
                equation.source,
                is_elementwise=is_elementwise,
            )
            cases.append((site, is_fault))
        return cases

    def _divisor_faults(self, y: Atom, equation: Equation) -> list[Atom]:
        """Emit the fault of a divisor ``y`` with zeros; no fault for other literals."""
        if 0 in y.type.shape or (isinstance(y, Literal) and y.value != 0):
            return []
        site = Site(DIVISION, equation.primitive.name, _plain(y.type), equation.source)
        is_zero = discrete.eq(y, conversion.literal(0, y.type.dtype))
        return [self._fault([(site, is_zero)], _positions(y.type))]

    def _fault(self, cases: Sequence[tuple[Site, Atom]], detail: Atom) -> Atom:
        """Add the sites of ``cases``, and emit the first fault among them, a scalar.

        ``cases`` are pairs of a site and a mask of bad elements. ``detail`` has the
        lower bits of each element's fault. The smallest fault is the first one.
        """
        first = len(self.sites)
        self.sites += [site for site, _ in cases]
        fault: Atom = NO_FAULT_LITERAL
        for number, (_, is_fault) in reversed(list(enumerate(cases, first))):
            fault = e.select(is_fault, e.add(detail, number << DETAIL_BITS), fault)
        axes = tuple(range(len(fault.type.shape)))
        return reductions.reduce_min(fault, axes=axes) if axes else fault


def _smallest(faults: Iterable[Atom]) -> Atom:
    """Emit the smallest of ``faults``; NO_FAULT if there are none."""
    first: Atom = NO_FAULT_LITERAL
    for fault in faults:
        if fault is not NO_FAULT_LITERAL:
            first = fault if first is NO_FAULT_LITERAL else e.minimum(first, fault)
    return first


def _positions(type: ArrayType) -> Atom:
    """Return the row-major index of each element, as int64."""
    if not type.shape:
        return Literal(0, dtypes.int64)
    flat = views.iota(shape=(type.size,), axis=0, dtype=dtypes.int64)
    return views.reshape(flat, shape=type.shape)


def _any(mask: Atom) -> Atom:
    """Whether any element of ``mask`` is true, as a scalar of the Program."""
    axes = tuple(range(len(mask.type.shape)))
    return reductions.reduce_or(mask, axes=axes) if axes else mask


def _as_int64(index: Atom) -> Atom:
    """Convert ``index`` to int64; larger numbers become the largest int64."""
    if isinstance(index, Literal):
        return Literal(index.value, dtypes.int64)
    if index.type.dtype == dtypes.uint64:
        index = e.minimum(index, NO_FAULT)  # the largest int64
    if index.type.dtype == dtypes.int64:
        return index
    return conversion.convert(index, dtypes.int64)


def _plain(type: ArrayType) -> ArrayType:
    """Return ``type`` without a layout, weakness or sharding."""
    return ArrayType(type.shape, type.dtype)


def _with_literals(program: Program, operands: Sequence[Atom]) -> Program:
    """Add an unused input to ``program`` for each of ``operands`` that is a Literal.

    Then the inputs correspond to all ``operands``. Those of ``program`` correspond to
    the operands that are Vars.
    """
    inputs = iter(program.inputs)
    all_inputs = tuple(
        Var(a.type) if isinstance(a, Literal) else next(inputs) for a in operands
    )
    return Program(program.name, all_inputs, program.equations, program.outputs)
