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
    """``program`` with a fault as a further result, and the sites, if there are any.

    ``y = x / z`` with ``kinds={"division"}`` becomes ``y = x / z; fault =
    min(select(z == 0, position + (site << 40), NO_FAULT))``. Before the fault are the
    values of the user's checks, in the order of the sites. The bodies of calls that
    ``is_whole`` accepts are not entered, as of those that a registered kernel computes.
    Unless ``asserted``, the user's checks are left where they are.
    """
    if not kinds and not (asserted and has_check(program)):
        return program, ()
    checker = _Checker(kinds, is_whole, asserted)
    checked = checker.checked(dce(program))
    if checked is None:
        return program, ()
    return checked, tuple(checker.sites)


class _Checker:
    """Inserts checks into Programs, and numbers their sites."""

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
        """``program`` with the user's checks' values and a fault as last outputs.

        None if the Program has nothing to check.
        """
        site_count = len(self.sites)
        with ProgramBuilder(program.name) as builder:
            inputs = builder.inputs_of(program)
            environment = builder.bind_inputs(program, inputs)
            found = self.emit(program, environment)
        if len(self.sites) == site_count:
            return None
        outputs = [rename(a, environment) for a in program.outputs]
        return builder.build([*outputs, *found])

    def emit(self, program: Program, environment: dict[Var, Atom]) -> list[Atom]:
        """Emit ``program`` together with checks of its equations.

        ``environment`` has the new Atom of each input; those of all Vars are added.
        Returns the values of the user's checks, then the first fault.
        """
        builder = current_builder()
        faults: list[Atom] = []
        all_values: list[Atom] = []
        for equation in program.equations:
            builder.source = equation.source
            primitive = primitive_of(equation)
            operands = [rename(a, environment) for a in equation.inputs]
            values: Sequence[Atom] = ()
            if primitive is in_bounds:
                results: Sequence[Atom] = operands
                found = self._index_faults(operands[0], equation)
            elif primitive is check and self.asserted:
                results = ()
                _, *values = operands
                found = self._condition_faults(operands[0], equation)
            elif primitive in LOOPS:
                results, (*values, fault) = LOOPS[primitive](self, equation, operands)
                found = [fault]
            elif (body := self._entered(equation)) is not None:
                environment.update(builder.bind_inputs(body, operands))
                *values, fault = self.emit(body, environment)
                results = [rename(a, environment) for a in body.outputs]
                found = [fault]
            else:
                results = builder.keep(equation, operands)
                found = self._number_faults(equation, operands, results)
            environment.update(zip(equation.outputs, results, strict=True))
            all_values += values
            faults += found
        return [*all_values, _smallest(faults)]

    def _entered(self, equation: Equation) -> Program | None:
        """The Program inside ``equation`` that is checked in its place, if any.

        It is the body of a call that no kernel computes as a whole, or the expansion of
        a Composition that holds Programs.
        """
        kernel = primitive_of(equation).kernel
        if isinstance(kernel, Body) and "body" in equation.params:
            if not self.is_whole(equation):
                return equation.params["body"]
        elif equation.subprograms() and isinstance(kernel, Composition):
            return self._expanded(equation)
        return None

    def _expanded(self, equation: Equation) -> Program:
        """The Program that a Composition with Programs expands to."""
        primitive = primitive_of(equation)
        assert isinstance(primitive.kernel, Composition)
        builder = ProgramBuilder(primitive.name)
        builder.source = equation.source
        with builder:
            inputs = [
                a if isinstance(a, Literal) else builder.input(a.type)
                for a in equation.inputs
            ]
            expanded = primitive.kernel.expand(*inputs, **equation.params)
            program = builder.build(
                expanded if isinstance(expanded, list) else [expanded]
            )
        return _with_literals(program, equation.inputs)

    def _condition_faults(self, condition: Atom, equation: Equation) -> list[Atom]:
        """The fault of a user's ``check`` whose ``condition`` is false."""
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
        """The faults of the ``index`` of an ``in_bounds`` equation."""
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
        """The faults of an equation: divisors of 0, results that are not finite."""
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
        """The sites for NaN and infinities in ``result``, each with a mask of them.

        Elements computed from an operand that is itself NaN, or not finite, do not
        count. If the equation is not elementwise, these are all.
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
        """The fault of a divisor ``y`` with zeros."""
        if 0 in y.type.shape or (isinstance(y, Literal) and y.value != 0):
            return []
        site = Site(DIVISION, equation.primitive.name, _plain(y.type), equation.source)
        is_zero = discrete.eq(y, conversion.literal(0, y.type.dtype))
        return [self._fault([(site, is_zero)], _positions(y.type))]

    def _fault(self, cases: Sequence[tuple[Site, Atom]], detail: Atom) -> Atom:
        """The first fault among ``cases``, pairs of a site and a mask.

        ``detail`` has the lower bits of each element's fault; the smallest number
        counts.
        """
        first = len(self.sites)
        self.sites += [site for site, _ in cases]
        fault: Atom = NO_FAULT_LITERAL
        for number, (_, is_fault) in reversed(list(enumerate(cases, first))):
            fault = e.select(is_fault, e.add(detail, number << DETAIL_BITS), fault)
        axes = tuple(range(len(fault.type.shape)))
        return reductions.reduce_min(fault, axes=axes) if axes else fault


def _smallest(faults: Iterable[Atom]) -> Atom:
    """The fault with the smallest number; NO_FAULT if there are none."""
    first: Atom = NO_FAULT_LITERAL
    for fault in faults:
        if fault is not NO_FAULT_LITERAL:
            first = fault if first is NO_FAULT_LITERAL else e.minimum(first, fault)
    return first


def _positions(type: ArrayType) -> Atom:
    """The row-major index of each element, as int64."""
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
        index = e.minimum(index, NO_FAULT)
    if index.type.dtype == dtypes.int64:
        return index
    return conversion.convert(index, dtypes.int64)


def _plain(type: ArrayType) -> ArrayType:
    """``type`` without a layout, weakness or sharding."""
    return ArrayType(type.shape, type.dtype)


def _with_literals(program: Program, operands: Sequence[Atom]) -> Program:
    """``program`` with an unused input for each of ``operands`` that is a Literal.

    So its inputs correspond to all operands of the equation that it was expanded from.
    """
    inputs = iter(program.inputs)
    all_inputs = tuple(
        Var(a.type) if isinstance(a, Literal) else next(inputs) for a in operands
    )
    return Program(program.name, all_inputs, program.equations, program.outputs)
