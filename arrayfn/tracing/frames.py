"""Frames: functions being traced, one inside the other.

A frame has the builder that equations are emitted into. Captured values of its function
(arrays, and Tracers of enclosing frames) become inputs of its Program.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, cast

import numpy as np

from arrayfn import dtypes
from arrayfn.array_likes import adopted
from arrayfn.ir import ArrayType, Atom, Literal, Mesh, Var, as_readable, type_of
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.records import frozen
from arrayfn.tracing.array_value import ArrayOnDevice
from arrayfn.tracing.value import Refused, Tracer

Array = np.ndarray[Any, Any]
Captured = Tracer | Array | ArrayOnDevice

INDEX: Final = "index"
"""The one check of ``jit`` that tracing takes part in."""


class Frame:
    """A function being traced.

    Attributes:
        name: the function's name, for messages.
        parent: the frame around this one, or None.
        abstract: whether every operation is staged, and values are unknown. Other
            frames compute operations at once that have no traced operand. Frames inside
            an abstract frame are abstract.
        types_only: whether the Program is never run, so that operands may have a type
            and no elements. Frames inside this one then are so too.
        platform: the backend that the function is compiled for; empty if a frame around
            it knows the backend, or if it is not compiled.
        asks_platform, asks_mesh: whether the function asked for the platform, and for
            the mesh of ``set_mesh``.
        checks: the checks of the compiled function, and of those around it.
        axes: the named axes that the function is mapped along.
        uses_outer_axis: whether the function used a named axis of a frame around it.
        inlined: the names of operators whose bodies are traced. All frames inside each
            other share one set.
        builder: the Program under construction.
        references: the values that Refs from outside hold inside this frame.
        fixed: the inputs that do not depend on anything that a derivative is taken by.
        closed: whether the function has returned.
        refused: the last refused conversion of a traced value, or None.
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
        """Begin a frame inside ``parent``, from which it takes over attributes."""
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
        self.references: dict[Any, Any] = {}
        self.fixed: set[Atom] = set()
        self.parent = parent
        self.closed = False
        self.refused: Refused | None = None
        # By id of the array, or of the Tracer's Atom.
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
        """Return the mapped axis called ``name`` of this frame or one around it.

        Returns None if there is no such axis. Sets ``uses_outer_axis`` of all frames
        inside the frame that has the axis: their Programs are only right inside it.
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
        """Return the names of all axes of this frame and the frames around it."""
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
        """Return the Atom of this frame's Program for a Tracer, array or scalar.

        Scalars and arrays of rank 0 become Literals. Other arrays, and Tracers of
        frames around this one, are captured: they become inputs. Raises TracerLeakError
        for a Tracer of a frame that has been left.
        """
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
        array = as_readable(array)  # a copy if kernels cannot read the strides
        return self._capture(array, type_of(array))

    def depends_on_inputs(self, atom: Atom) -> bool:
        """Whether ``atom`` depends on inputs that are not ``fixed``.

        A captured value counts as such an input if a derivative may be taken by it
        (``may_vary``).
        """
        varying = set(self.builder.inputs) - self.fixed
        varying |= {var for value, var in self.captured if may_vary(value)}
        for equation in self.builder.equations:
            if not varying.isdisjoint(equation.inputs):
                varying.update(equation.outputs)
        return atom in varying

    def _capture(self, value: Any, type: ArrayType) -> Var:
        """Return the input that stands for a captured value, one for all of its uses.

        Adds the input on the first use.
        """
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


@frozen(slots=True)
class NamedAxis:
    """An axis that a function is mapped along.

    Attributes:
        size: the number of members.
        index: the member's index, a Tracer of an input of the function's Program.
        mesh: the mesh that it is an axis of, or None for an axis of ``vmap``.
        typed: whether types say what varies along it.
    """

    size: int
    index: Tracer
    mesh: Mesh | None = None
    typed: bool = False


class _Local(threading.local):
    """The innermost frame of this thread."""

    def __init__(self) -> None:
        """Begin with none; each thread calls this on its first access."""
        self.frame: Frame | None = None


_local = _Local()


def current_frame() -> Frame | None:
    """Return the innermost frame being traced in this thread, or None."""
    return _local.frame


def platform() -> str:
    """Return the backend that the function being traced is compiled for.

    It is empty if no function is traced for a backend. Otherwise sets
    ``asks_platform``, so that the Program is only used for this backend.
    """
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
