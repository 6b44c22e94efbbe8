"""What a backend is: something that turns a Program into a callable of flat arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from arrayfn.ir import Program
from arrayfn.lowering.options import DEFAULT, Options
from arrayfn.records import frozen

if TYPE_CHECKING:
    from arrayfn.lowering.compiled import CompiledProgram
    from arrayfn.lowering.plan import Kernel

Executable = Callable[[tuple[Any, ...]], Sequence[Any]]


@runtime_checkable
class DirectExecutable(Protocol):
    """An executable that takes its inputs one by one and checks them itself.

    ``call`` returns a tuple of outputs, ``call_single`` the only output. If an input
    does not fit, nothing is run and the result is the ``int`` 1 + the input's number.
    """

    call: Callable[..., Any]
    call_single: Callable[..., Any]


@runtime_checkable
class TimedExecutable(Protocol):
    """An executable that measures the steps of its plan, and waits for its results."""

    @property
    def backend(self) -> str:
        """The name of the backend that the steps run on.

        Profiles compare the times with this backend's roof.
        """
        ...

    def __call__(self, inputs: tuple[Any, ...], /) -> Sequence[Any]:
        """Run the plan on ``inputs``; return its outputs."""
        ...

    def times_of_steps(self) -> Mapping[int, tuple[int, float]]:
        """Map each step's number to (how often it ran so far, its total seconds)."""
        ...


@runtime_checkable
class TimingBackend(Protocol):
    """A backend that can measure the steps of a plan."""

    def load_timed(self, compiled: CompiledProgram) -> TimedExecutable:
        """Return ``compiled`` as a callable that measures the steps of its plan."""
        ...


@runtime_checkable
class AssemblingBackend(Protocol):
    """A backend whose kernels can be read as assembly."""

    def assembly(self, kernel: Kernel) -> str:
        """Return the assembly of ``kernel`` as text."""
        ...


@frozen
class BackendInfo:
    """What a backend is, what it requires, and why it cannot run on this machine.

    ``missing`` is empty if the backend can be chosen by name. The ``kind`` is
    "backend", "part" for a library or feature that backends use, or "implied" for a
    backend that is chosen by where the arguments lie.
    """

    name: str
    description: str
    requires: tuple[str, ...]
    missing: str = ""
    kind: str = "backend"


class Backend(Protocol):
    """A way to run Programs on one kind of device."""

    @property
    def name(self) -> str:
        """The name that users pass to ``jit(f, device=name)``."""
        ...

    def info(self) -> BackendInfo:
        """Return the backend's requirements, and what is missing on this machine."""
        ...

    def array_types(self) -> tuple[type, ...]:
        """Return the classes of arrays, besides NumPy's, that executables accept."""
        ...

    def lower(
        self, program: Program, donated: frozenset[int], options: Options = DEFAULT
    ) -> CompiledProgram:
        """Compile ``program`` to kernels and a plan.

        ``donated`` are the numbers of the inputs whose memory may be overwritten.
        """
        ...

    def put(self, x: Any) -> Any:
        """Copy ``x``, an array or number, to this backend's memory."""
        ...

    def load(self, compiled: CompiledProgram) -> Executable:
        """Return ``compiled`` as a callable of a flat tuple of arrays.

        It returns a sequence of arrays.
        """
        ...
