"""What a backend is: something that turns a Program into a callable of flat arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from arrayfn.ir import Program
from arrayfn.lowering.options import DEFAULT, Options

if TYPE_CHECKING:
    from arrayfn.lowering.compiled import CompiledProgram
    from arrayfn.lowering.plan import Kernel

Executable = Callable[[tuple[Any, ...]], Sequence[Any]]


@runtime_checkable
class DirectExecutable(Protocol):
    """An executable that takes its inputs one by one and checks them itself.

    If an input does not fit it runs nothing and returns the ``int`` 1 + its number.
    """

    call: Callable[..., Any]
    call_single: Callable[..., Any]


@runtime_checkable
class TimedExecutable(Protocol):
    """An executable that measures the steps of its plan, and waits for its results.

    ``backend`` names the backend whose roof the times are compared with.
    """

    @property
    def backend(self) -> str:
        """The name of the backend that the steps run on."""
        ...

    def __call__(self, inputs: tuple[Any, ...], /) -> Sequence[Any]:
        """Run the plan."""
        ...

    def times_of_steps(self) -> Mapping[int, tuple[int, float]]:
        """By step number: how many times the step ran so far, and its total seconds."""
        ...


@runtime_checkable
class TimingBackend(Protocol):
    """A backend that can measure the steps of a plan."""

    def load_timed(self, compiled: CompiledProgram) -> TimedExecutable:
        """The callable of ``compiled`` that measures its steps."""
        ...


@runtime_checkable
class AssemblingBackend(Protocol):
    """A backend whose kernels can be read as assembly."""

    def assembly(self, kernel: Kernel) -> str:
        """The assembly of ``kernel``."""
        ...


@dataclass(frozen=True)
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
        """The backend's requirements, and what is missing on this machine."""
        ...

    def array_types(self) -> tuple[type, ...]:
        """The types of arrays, besides NumPy's, that executables take as they are."""
        ...

    def lower(
        self, program: Program, donated: frozenset[int], options: Options = DEFAULT
    ) -> CompiledProgram:
        """Compile ``program`` to kernels and a plan.

        The memory of the inputs ``donated`` may be overwritten.
        """
        ...

    def put(self, x: Any) -> Any:
        """A copy of ``x``, an array or number, in this backend's memory."""
        ...

    def load(self, compiled: CompiledProgram) -> Executable:
        """The callable of ``compiled``: a flat tuple of arrays to a list of arrays."""
        ...
