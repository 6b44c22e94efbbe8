"""Frames: functions being traced, one inside the other.

A frame has the builder that equations are emitted into. Captured values of its function
(arrays, and Tracers of enclosing frames) become inputs of its Program.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

from arrayfn import dtypes
from arrayfn.array_likes import adopted
from arrayfn.ir import ArrayType, Atom, Literal, Mesh, Var, in_place, type_of
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.tracing.array_value import ArrayOnDevice
from arrayfn.tracing.value import Refused, Tracer

Array = np.ndarray[Any, Any]
Captured = Tracer | Array | ArrayOnDevice

INDEX: Final = "index"
"""The one check of ``jit`` that tracing takes part in."""


class Frame:
    """A function being traced; messages call it ``name``.

    ``abstract`` frames, and those inside them, stage every operation. Other frames
    compute operations on arrays alone at once. ``checks`` are the checks of the
    compiled function, which hold for functions inside it, too. ``uses_outer_axis`` says
    whether the function used a named axis of an enclosing frame. ``inlined`` names the
    operators that are traced as their bodies; a frame shares it with those inside it.
    ``platform`` is the backend that the function is compiled for, empty if another
    frame knows it; ``asks_platform`` says whether it was asked for, ``asks_mesh``
    whether the mesh of ``set_mesh`` was. A frame of ``types_only``, and those inside
    it, are never run: what has a type and no elements may be an operand. ``fixed`` has
    the inputs that do not depend on anything that a derivative is taken by.
    """

    def __init__(
        self,
        name: str,
        abstract: bool,
        parent: Frame | None,
        checks: frozenset[str] = frozenset(),
        platform: str = "",
        types_only: bool = False,
    ) -> None:
        self.name = name
        self.types_only = types_only or (parent is not None and parent.types_only)
        self.platform = platform
        self.asks_platform = self.asks_mesh = False
        self.checks = checks if parent is None else checks | parent.checks
        self.axes: dict[str, NamedAxis] = {}
        self.inlined: set[str] = set() if parent is None else parent.inlined
        self.builder = ProgramBuilder(name if name.isidentifier() else "function")
        self.abstract = abstract or (parent is not None and parent.abstract)
        self.uses_outer_axis = False
        # The values that Refs from outside hold inside this frame.
        self.references: dict[Any, Any] = {}
        self.fixed: set[Atom] = set()
        self.parent = parent
        self.closed = False
        self.refused: Refused | None = None
        self._captured: dict[int, tuple[Captured, Var]] = {}

    @contextmanager
    def entered(self) -> Generator[None]:
        """Make this frame the innermost one of the thread; close it at the end."""
        around = _local.frame
        _local.frame = self
        try:
            yield
        finally:
            _local.frame = around
            self.closed = True

    def named_axis(self, name: str) -> NamedAxis | None:
        """The mapped axis called ``name`` of this frame or one around it, or None.

        If it is one of a frame around it, this is noted in ``uses_outer_axis`` of all
        frames inside that frame: their Programs hold for this use alone.
        """
        frame: Frame | None = self
        inner_frames: list[Frame] = []
        while frame is not None:
            if name in frame.axes:
                for inner in inner_frames:
                    inner.uses_outer_axis = True
                return frame.axes[name]
            inner_frames.append(frame)
            frame = frame.parent
        return None

    def axis_names(self) -> list[str]:
        """The names of all axes that this frame is mapped along."""
        names: list[str] = []
        frame: Frame | None = self
        while frame is not None:
            names += frame.axes
            frame = frame.parent
        return names

    @property
    def captured(self) -> list[tuple[Captured, Var]]:
        """The captured values, each with the input that stands for it."""
        return list(self._captured.values())

    def atom(self, operand: Any) -> Atom:
        """The atom of this frame's Program for a Tracer, array or scalar."""
        if isinstance(operand, Tracer):
            if operand.frame is self:
                return operand.atom
            operand.check_alive(self)
            if isinstance(operand.atom, Literal):
                return operand.atom
            return self._capture(operand, operand.type)
        if isinstance(operand, Literal):
            return operand
        if dtypes.is_python_scalar(operand):
            value = dtypes.plain_scalar(operand)
            return Literal(value, dtypes.weak_dtype(value), weak=True)
        operand = adopted(operand)
        if isinstance(operand, ArrayOnDevice):
            return self._capture(operand, operand.type)
        if self.types_only and hasattr(operand, "__arrayfn_type__"):
            return self._capture(operand, operand.__arrayfn_type__)
        array = np.asarray(operand)
        if array.ndim == 0 and array.dtype.kind in "biufc":
            return Literal(array.item(), dtypes.canonical(array.dtype))
        array = in_place(array)
        return self._capture(array, type_of(array))

    def depends_on_inputs(self, atom: Atom) -> bool:
        """Whether ``atom`` depends on inputs that are not ``fixed``.

        Captured values are inputs; they are fixed if they do not depend on such inputs
        of the frames around.
        """
        varying = set(self.builder.inputs) - self.fixed
        varying |= {var for value, var in self.captured if may_vary(value)}
        for equation in self.builder.equations:
            if not varying.isdisjoint(equation.inputs):
                varying.update(equation.outputs)
        return atom in varying

    def _capture(self, value: Any, type: ArrayType) -> Var:
        """The input that stands for a captured value; the same for all of its uses."""
        key = id(value.atom) if isinstance(value, Tracer) else id(value)
        known = self._captured.get(key)
        if known is None:
            known = self._captured[key] = (value, Var(type))
        return known[1]


def may_vary(value: Any) -> bool:
    """Whether a derivative may be taken by ``value``, or by what it depends on."""
    if not isinstance(value, Tracer) or value.dtype not in dtypes.DIFFERENTIABLE:
        return False
    return cast(Frame, value.frame).depends_on_inputs(value.atom)


@dataclass(frozen=True, slots=True)
class NamedAxis:
    """An axis that a function is mapped along: its extent, and a member's ``index``.

    The index is a Tracer without a value: an input of the function's Program. ``mesh``
    is that of a mesh axis. The axis is ``typed`` if types say what varies along it.
    """

    size: int
    index: Tracer
    mesh: Mesh | None = None
    typed: bool = False


class _Local(threading.local):
    def __init__(self) -> None:
        self.frame: Frame | None = None


_local = _Local()


def current_frame() -> Frame | None:
    """The innermost frame being traced in this thread."""
    return _local.frame


def platform() -> str:
    """The backend that the function being traced is compiled for; empty if none is."""
    frame = _local.frame
    while frame is not None and not frame.platform:
        frame = frame.parent
    if frame is None:
        return ""
    frame.asks_platform = True
    return frame.platform


def checks_indices() -> bool:
    """Whether indices with unknown values are checked when the function runs."""
    frame = _local.frame
    return frame is not None and INDEX in frame.checks
