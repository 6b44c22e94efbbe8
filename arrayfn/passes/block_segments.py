"""Segments: the equations of a member that are computed block by block.

A device computes the *blocks* of several members along a mesh axis. Values that differ
between members are stacked along a first axis, one block of it for each. Equations
between two collectives are one segment. The segment of what differs is a scan over the
blocks; that of what is equal is a scan of one iteration. Their ``unroll`` is 0: no pass
changes such a loop by its length, so that each segment is compiled alike on any number
of devices. Views are repeated in the segments that read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from arrayfn import dtypes
from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.ir.builder import ProgramBuilder, current_builder
from arrayfn.passes.member_variance import (
    Flags,
    has_collective_over,
    is_collective_over,
    scan_varies,
    varying,
    while_varies,
)
from arrayfn.primitives import conversion, views
from arrayfn.primitives import elementwise as e
from arrayfn.primitives.base import View, has_effect, primitive_of
from arrayfn.primitives.collectives import all_gather, all_to_all
from arrayfn.primitives.control_flow import arranged, split_by_counts
from arrayfn.primitives.control_flow_scan import scan
from arrayfn.primitives.emitters import move_axis
from arrayfn.primitives.rules import repeated
from arrayfn.primitives.slicing import index_along, slice_along
from arrayfn.records import frozen

Segment = tuple[int, bool]
"""A level and whether results differ between members.

The level counts the collectives on the longest path to an equation.
"""
ELSEWHERE: Final[Segment] = (-1, False)
"""Stands for readers outside of segments: collectives and the Program's outputs."""


@frozen
class BlockAxis:
    """A mesh axis with ``members`` blocks, several of which each device computes."""

    name: str
    members: int
    devices: int

    @property
    def blocks(self) -> int:
        """The number of blocks that one device computes."""
        return self.members // self.devices


class Blocks:
    """Emits the Program of one member for all blocks of a device at once.

    Values that differ between members are stacked along a new first axis, and loops
    over the blocks compute them. ``Blocks(axis, program, differ, inputs)`` emits
    ``program`` into the current builder. ``differ`` says which inputs differ, and
    ``inputs`` are their new values. ``stacked`` and ``unstacked`` then give results.

    Attributes:
        axis: the axis whose members are the blocks.
        flags: whether a value differs between members; it is then stacked.
        new_values: the new value of each Var outside of segments.
        inlined: the equation of each Var that is a view, repeated where it is read.
        readers: the segments that read each Var.
    """

    def __init__(
        self,
        axis: BlockAxis,
        program: Program,
        differ: Sequence[bool],
        inputs: Sequence[Atom],
    ) -> None:
        """Emit ``program`` into the current builder; see the class."""
        self.axis = axis
        self.flags = varying(program, differ, axis.name)
        # The inputs and constants; ``_emit`` adds the results of segments.
        self.new_values: dict[Atom, Atom] = {}
        for var, x in current_builder().bind_inputs(program, inputs).items():
            self.new_values[var] = x
        self.inlined: dict[Atom, Equation] = {}
        self.readers: dict[Atom, set[Segment]] = {}
        self._emit(program)

    def unstacked(self, atom: Atom) -> Atom:
        """Return the new value of ``atom``, which is equal on all members.

        If it is stacked (its flag is set), the blocks of all members are along a new
        first axis: return the first block.
        """
        x = self.new_values.get(atom, atom)
        if not self.flags.get(atom, False):
            return x
        return index_along(x, axis=0, index=0)

    def stacked(self, atom: Atom) -> Atom:
        """Return the new values of ``atom`` for all blocks, along a new first axis."""
        x = self.new_values.get(atom, atom)
        if self.flags.get(atom, False):
            return x
        return repeated(self.axis.blocks, x, dim=None)

    def stacked_if(self, atom: Atom, differs: bool) -> Atom:
        """Return ``stacked(atom)`` if ``differs``, else ``unstacked(atom)``."""
        return self.stacked(atom) if differs else self.unstacked(atom)

    def _emit(self, program: Program) -> None:
        """Emit all segments of ``program``, and the collectives between them.

        For each level: the segment of what is equal on all members, the segment of what
        differs, and the collectives.
        """
        levels = self._levels(program)
        emitted = self._needed(program, levels)
        builder = current_builder()
        for level in range(max(levels.values(), default=0) + 1):
            of_level = [q for q in emitted if levels[q] == level]
            collectives = [
                q for q in of_level if has_collective_over(q, self.axis.name)
            ]
            for differs in (False, True):
                segment = [
                    q
                    for q in of_level
                    if q not in collectives and self._differs(q) == differs
                ]
                if segment:
                    self._segment(segment, (level, differs))
            for equation in collectives:
                builder.source = equation.source
                self._emit_collective(equation)

    def _differs(self, equation: Equation) -> bool:
        """Whether results of ``equation``, which has no collective, differ."""
        return any(self.flags[var] for var in equation.outputs)

    def _levels(self, program: Program) -> dict[Equation, int]:
        """Return each equation's level: the most collectives on a path to it."""
        of_vars: dict[Atom, int] = {}
        levels: dict[Equation, int] = {}
        for equation in program.equations:
            level = max((of_vars.get(a, 0) for a in equation.inputs), default=0)
            levels[equation] = level
            after = level + has_collective_over(equation, self.axis.name)
            of_vars.update(dict.fromkeys(equation.outputs, after))
        return levels

    def _needed(
        self, program: Program, levels: Mapping[Equation, int]
    ) -> list[Equation]:
        """Return the equations to emit: those that are read, without inlined views.

        An equation's segment is its level, of ``levels``, and whether its values differ
        between blocks. Going backwards, fills ``readers`` with the segments that read
        each Var, and ``inlined`` with the views that only segments read.
        """
        read = self.readers
        for atom in program.outputs:
            read.setdefault(atom, set()).add(ELSEWHERE)
        emitted: list[Equation] = []
        for equation in reversed(program.equations):
            readers: set[Segment] = set()
            for var in equation.outputs:
                readers |= read.setdefault(var, set())
            if not readers and not has_effect(equation):
                continue
            if _is_view(equation) and ELSEWHERE not in readers:
                self.inlined[equation.outputs[0]] = equation
            else:
                emitted.append(equation)
                is_outside = has_collective_over(equation, self.axis.name)
                own = levels[equation], not is_outside and self._differs(equation)
                readers = {ELSEWHERE if is_outside else own}
            for atom in equation.inputs:
                read.setdefault(atom, set()).update(readers)
        return emitted[::-1]

    # Segments.

    def _segment(self, equations: Sequence[Equation], segment: Segment) -> None:
        """Emit ``equations`` as a scan over the blocks; record the ``new_values``.

        The scan has one iteration if the results do not differ between members. Stacked
        values are its slices, others its constants. The scan returns what other
        segments, collectives or outputs read.
        """
        _, differs = segment
        # What something outside of the segment reads.
        results = [
            var
            for equation in equations
            for var in equation.outputs
            if self.readers[var] - {segment}
        ]
        body = ProgramBuilder("block" if differs else "alike")
        environment: dict[Var, Atom] = {}
        consts: list[tuple[Var, Atom]] = []
        xs: list[tuple[Var, Atom]] = []

        def add(equation: Equation) -> None:
            """Append ``equation`` to the body, preceded by the views that it reads.

            What else it reads becomes an input of the body: a slice (``xs``) if it is
            stacked, else a constant (``consts``).
            """
            for atom in equation.inputs:
                if not isinstance(atom, Var) or atom in environment:
                    continue
                if atom in self.inlined:
                    add(self.inlined[atom])
                    continue
                x = self.new_values[atom]
                type = x.type.with_shape(atom.type.shape)
                environment[atom] = inner = body.input(type, atom.hint)
                (xs if self.flags[atom] else consts).append((inner, x))
            body.replay(equation, environment)

        with body:
            for equation in equations:
                add(equation)
        built = body.build([environment[var] for var in results])
        # A scan's inputs are its constants, then its slices; there is no carry.
        inputs = [var for var, _ in (*consts, *xs)]
        builder = current_builder()
        builder.source = equations[0].source
        outputs = builder.emit(
            scan,
            [x for _, x in (*consts, *xs)],
            {
                "program": arranged(built, inputs, built.outputs),
                "length": self.axis.blocks if differs else 1,
                "reverse": False,
                "consts": len(consts),
                "carry": 0,
                "unroll": 0,
            },
        )
        # The scan stacks results along axis 0, which has extent 1 if nothing differs.
        for var, y in zip(results, outputs, strict=True):
            self.new_values[var] = (
                y if differs else views.reshape(y, shape=var.type.shape)
            )

    # Collectives, and what has some inside.

    def _emit_collective(self, equation: Equation) -> None:
        """Emit ``equation``, a collective, or a loop or branch that has one."""
        if is_collective_over(equation, self.axis.name):
            x = self.stacked(equation.inputs[0])
            rule = _COLLECTIVES[equation.primitive.name]
            results: Sequence[Atom] = [rule(self.axis, x, equation.params)]
        else:
            differ = [self.flags.get(atom, False) for atom in equation.inputs]
            results = _CONTROL[equation.primitive.name](self, equation, differ)
        self.new_values.update(zip(equation.outputs, results, strict=True))

    def inner(
        self, program: Program, differ: Sequence[bool], results: Sequence[bool]
    ) -> Program:
        """Rewrite the Program of a loop or branch for all blocks of a device.

        The inputs that ``differ`` are stacked, and so are the outputs for which
        ``results`` is true.
        """
        builder = ProgramBuilder(program.name)
        with builder:
            inputs: list[Atom] = []
            for var, is_stacked in zip(program.inputs, differ, strict=True):
                front = (self.axis.blocks,) if is_stacked else ()
                type = var.type.with_shape((*front, *var.type.shape))
                inputs.append(builder.input(type, var.hint))
            blocks = Blocks(self.axis, program, differ, inputs)
            pairs = zip(program.outputs, results, strict=True)
            return builder.build(
                [blocks.stacked_if(atom, flag) for atom, flag in pairs]
            )


def _is_view(equation: Equation) -> bool:
    """Whether ``equation`` is a view or an iota, which costs nothing to repeat."""
    primitive = primitive_of(equation)
    if primitive is views.relayout or len(equation.outputs) != 1:
        return False
    return isinstance(primitive.kernel, View) or primitive is views.iota


def _scan(blocks: Blocks, equation: Equation, differ: Flags) -> list[Atom]:
    """Emit a scan whose body has collectives; values that ``differ`` are stacked."""
    params = equation.params
    consts, carry = params["consts"], params["carry"]
    carries, results = scan_varies(params, differ, blocks.axis.name)
    fixed, _, slices = split_by_counts(differ, consts, carry)
    flags = [*fixed, *carries, *slices]
    operands: list[Atom] = []
    for k, (atom, flag) in enumerate(zip(equation.inputs, flags, strict=True)):
        x = blocks.stacked_if(atom, flag)
        # The scan iterates over axis 0, so the blocks of a slice go along axis 1.
        operands.append(move_axis(x, 0, 1) if flag and k >= consts + carry else x)
    body = blocks.inner(params["program"], flags, results)
    outputs = current_builder().emit(scan, operands, {**params, "program": body})
    return [
        move_axis(y, 1, 0) if flag and k >= carry else y
        for k, (y, flag) in enumerate(zip(outputs, results, strict=True))
    ]


def _while(blocks: Blocks, equation: Equation, differ: Flags) -> Sequence[Atom]:
    """Emit a while_loop with collectives, which all members leave together."""
    params = equation.params
    # Which carried values may differ between members, in any iteration.
    carries = while_varies(params, differ, blocks.axis.name)
    first, second = params["cond_consts"], params["body_consts"]
    for_cond, for_body, _ = split_by_counts(differ, first, second)
    flags = [*for_cond, *for_body, *carries]
    condition = blocks.inner(params["cond_program"], [*for_cond, *carries], [False])
    body = blocks.inner(params["body_program"], [*for_body, *carries], carries)
    programs = {"cond_program": condition, "body_program": body}
    pairs = zip(equation.inputs, flags, strict=True)
    operands = [blocks.stacked_if(atom, flag) for atom, flag in pairs]
    return current_builder().emit(equation.primitive, operands, {**params, **programs})


def _cond(blocks: Blocks, equation: Equation, differ: Flags) -> Sequence[Atom]:
    """Emit a branch with collectives, whose index is equal on all members."""
    index, *operands = equation.inputs
    results = [blocks.flags[var] for var in equation.outputs]
    branches = tuple(
        blocks.inner(branch, differ[1:], results)
        for branch in equation.params["branches"]
    )
    pairs = zip(operands, differ[1:], strict=True)
    inputs = [
        blocks.unstacked(index),
        *(blocks.stacked_if(a, flag) for a, flag in pairs),
    ]
    return current_builder().emit(equation.primitive, inputs, {"branches": branches})


_CONTROL: Final[Mapping[str, Callable[[Blocks, Equation, Flags], Sequence[Atom]]]] = {
    "scan": _scan,
    "while_loop": _while,
    "cond": _cond,
}


# The collectives of blocks, which are stacked along axis 0 of ``x``.


def _tree(x: Atom, combine: Callable[[Atom, Atom], Atom]) -> Atom:
    """Combine ``x`` along axis 0, whose extent is a power of two, by a binary tree."""
    level = [slice_along(x, 0, k, k + 1) for k in range(x.type.shape[0])]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [combine(a, b) for a, b in pairs]
    return views.reshape(level[0], shape=x.type.shape[1:])


_COMBINE: Final[Mapping[str, Callable[[Atom, Atom], Atom]]] = {
    "sum": e.add,
    "max": e.maximum,
    "min": e.minimum,
}


def _reduced(axis: BlockAxis, x: Atom, params: Mapping[str, Any]) -> Atom:
    """Emit an ``all_reduce`` of ``x``, whose axis 0 has a device's blocks.

    The device's blocks are combined by a tree, then the results of all devices.
    """
    combine, dtype = _COMBINE[params["op"]], x.type.dtype
    x = conversion.as_dtype(x, dtypes.compute_dtype(dtype))  # rounded once
    x = _tree(x, combine)
    if axis.devices > 1:
        x = _tree(all_gather(x, axis_name=axis.name, members=axis.devices), combine)
    return conversion.as_dtype(x, dtype)


def _gathered(axis: BlockAxis, x: Atom, params: Mapping[str, Any]) -> Atom:
    """Emit an ``all_gather`` of ``x``, a device's blocks along axis 0.

    The result is the same on all devices: the blocks of all of them, along axis 0.
    """
    if axis.devices == 1:
        return x
    every = all_gather(x, axis_name=axis.name, members=axis.devices)
    return views.reshape(every, shape=(axis.members, *x.type.shape[1:]))


def _scattered(axis: BlockAxis, x: Atom, params: Mapping[str, Any]) -> Atom:
    """Emit a ``reduce_scatter``: block k gets part k of the sum of all blocks.

    Axis 0 of ``x`` has the blocks, and axis 1 the parts. The device's blocks are added
    by a tree, then the devices exchange the parts, and add by a tree what they get.
    """
    dtype = x.type.dtype
    x = _tree(conversion.as_dtype(x, dtypes.compute_dtype(dtype)), e.add)
    if axis.devices > 1:
        shape = (axis.devices, axis.blocks, *x.type.shape[1:])
        parts = views.reshape(x, shape=shape)
        received = all_to_all(parts, axis_name=axis.name, members=axis.devices)
        x = _tree(received, e.add)
    return conversion.as_dtype(x, dtype)


def _exchanged(axis: BlockAxis, x: Atom, params: Mapping[str, Any]) -> Atom:
    """Emit an ``all_to_all``: block k gets part k of every block.

    Axis 0 of ``x`` has the device's blocks, and axis 1 the parts for all blocks.
    """
    rest = x.type.shape[2:]
    if axis.devices == 1:
        return move_axis(x, 1, 0)
    parts = views.reshape(x, shape=(axis.blocks, axis.devices, axis.blocks, *rest))
    received = all_to_all(
        move_axis(parts, 1, 0), axis_name=axis.name, members=axis.devices
    )
    # Axes: the device and the block that sent a part, and the block that gets it.
    by_block = move_axis(received, 2, 0)
    return views.reshape(by_block, shape=(axis.blocks, axis.members, *rest))


_COLLECTIVES: Final[
    Mapping[str, Callable[[BlockAxis, Atom, Mapping[str, Any]], Atom]]
] = {
    "all_reduce": _reduced,
    "all_gather": _gathered,
    "reduce_scatter": _scattered,
    "all_to_all": _exchanged,
}
