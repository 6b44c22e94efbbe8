"""How a value is read: from which base, through which affine views.

Views cost nothing. A ``Read`` says that a value's element at index w is the base's
element at ``offset + scale * w[axis]`` along each axis of the base. A view of a view is
one Read.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from arrayfn.ir import Atom, Equation, Literal, Program, Var
from arrayfn.primitives import views
from arrayfn.primitives.base import AxisMap, View, primitive_of
from arrayfn.records import frozen


@frozen(slots=True)
class Read:
    """How a value is read out of the array ``base``: an AxisMap for each base axis.

    Element ``w`` of the value is the element of the base whose index along each axis is
    ``offset + scale * w[axis]``, or ``offset`` if the AxisMap's ``axis`` is None.
    """

    base: Var
    axes: tuple[AxisMap, ...]

    def strides(self, base_strides: Sequence[int], ndim: int) -> tuple[int, ...]:
        """Return the strides of the value's ``ndim`` axes in its base, in elements."""
        strides = [0] * ndim
        for axis_map, stride in zip(self.axes, base_strides, strict=True):
            if axis_map.axis is not None:
                strides[axis_map.axis] += axis_map.scale * stride
        return tuple(strides)

    def offset(self, base_strides: Sequence[int]) -> int:
        """Return the offset of the value's first element in the base, in elements."""
        return sum(
            axis_map.offset * stride
            for axis_map, stride in zip(self.axes, base_strides, strict=True)
        )

    @property
    def is_identity(self) -> bool:
        """Whether the value is the base itself."""
        return self.axes == _in_place(len(self.axes))


Reads = Mapping[Var, Read]
"""How the values of a Program are read."""


def identity_read(var: Var) -> Read:
    """Return the read of ``var`` as itself."""
    return Read(var, _in_place(var.type.ndim))


@functools.cache
def _in_place(ndim: int) -> tuple[AxisMap, ...]:
    """Return the index map of an array of ``ndim`` axes that is read as itself."""
    return tuple(AxisMap(axis) for axis in range(ndim))


def compose(view: Sequence[AxisMap], read: Read) -> Read:
    """Return the Read of a view's result, given that of its operand.

    ``view`` has an AxisMap for each axis of the operand.
    """
    axes: list[AxisMap] = []
    for outer in read.axes:
        if outer.axis is None:
            axes.append(outer)
            continue
        inner = view[outer.axis]
        # outer.offset + outer.scale * (inner.offset + inner.scale * w[inner.axis])
        axes.append(
            AxisMap(
                inner.axis,
                outer.scale * inner.scale,
                outer.offset + outer.scale * inner.offset,
            )
        )
    return Read(read.base, tuple(axes))


def affine_view(equation: Equation) -> tuple[AxisMap, ...] | None:
    """Return the AxisMaps of ``equation`` if it is an affine view, else None.

    A relayout is none, because it copies, nor is a view of a literal.
    """
    primitive = primitive_of(equation)
    if not isinstance(primitive.kernel, View) or primitive is views.relayout:
        return None
    if not isinstance(equation.inputs[0], Var):
        return None
    return primitive.kernel.axes(equation.inputs[0].type, **equation.params)


def record_reads(equation: Equation, reads: dict[Var, Read]) -> None:
    """Add to ``reads`` how kernels read each output of ``equation`` from memory.

    The operands are in ``reads``. A view is read out of the array that its operand is
    read out of; any other output is an array in memory.
    """
    view = affine_view(equation)
    if view is None:
        reads.update((v, identity_read(v)) for v in equation.outputs)
        return
    source: Atom = equation.inputs[0]
    assert isinstance(source, Var)
    reads[equation.outputs[0]] = compose(view, reads[source])


def is_zeros(equation: Equation) -> bool:
    """Whether ``equation`` makes an array of zeros."""
    if equation.primitive is not views.broadcast_in_dim:
        return False
    value = equation.inputs[0]
    return isinstance(value, Literal) and value.value == 0


def resolve_reads(program: Program) -> dict[Var, Read]:
    """Return the read of each Var of ``program``."""
    reads: dict[Var, Read] = {
        v: identity_read(v) for v in (*program.inputs, *program.constants)
    }
    for equation in program.equations:
        record_reads(equation, reads)
    return reads
