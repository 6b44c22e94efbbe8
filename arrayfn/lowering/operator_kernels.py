"""Kernels that are registered for operators, and the choice among them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, Literal, get_args

from arrayfn.ir import ArrayType, Equation, Program, walk
from arrayfn.primitives.dropped_kernels import (
    VMAP,
    forget_kernels,
    note_kernel,
    warn_dropped,
)
from arrayfn.records import frozen

Function = Callable[..., Any]
# Whether a kernel takes operands of these types, with these static arguments.
Condition = Callable[..., bool]
# Whether a kernel takes an array of this type and layout, ``offset`` elements into its
# memory, without a copy: as an operand that is a view, or as a part of a result.
TakesView = Callable[[ArrayType, int], bool]
# How a kernel computes a mapped operator: one call for each member, or one call on
# operands with the mapped axis in front (of extent 1 where an operand is not mapped).
VmapMethod = Literal["sequential", "expand_dims"]
VMAP_METHODS: Final = get_args(VmapMethod)


def row_major_only(type: ArrayType, offset: int) -> bool:
    """Return False: each operand and each result must be a row-major array."""
    return False


@frozen
class OperatorKernel:
    """One implementation of an operator: for one backend, and for certain operands.

    Attributes:
        function: takes the operands' arrays, then those to write the results into, then
            the static arguments by name. An operand that was not given is None.
        when: ``when(*types, **static)`` says whether the kernel takes operands of these
            types (ArrayType); None accepts all.
        prepared: whether the function is called once, when a plan is loaded, with types
            in place of arrays, and returns a function that enqueues the work.
        views: which views the kernel takes without a copy.
        lowered: whether the function is called by the compiler with the equation, and
            returns kernels of generated text with their calls.
        deterministic: whether results are the same in each run. A kernel that adds in
            varying order is used only where that is allowed.
        check: the relative tolerance at which the first call of each signature is
            compared with the operator's body. True stands for the default of the
            results' dtypes, False for no comparison.
        vmap: how the kernel computes a mapped operator; None for the mapped body.
        compiles_body: whether it was made of the body's own source. Transformations,
            which use the body, then leave out nothing, and do not warn.
        agreed: the signatures whose comparison passed.
    """

    operator: str
    backend: str
    function: Function
    when: Condition | None = None
    prepared: bool = False
    views: TakesView = row_major_only
    lowered: bool = False
    deterministic: bool = True
    check: bool | float = False
    vmap: VmapMethod | None = None
    compiles_body: bool = False
    agreed: set[Any] = field(default_factory=set[Any], repr=False, compare=False)

    @property
    def title(self) -> str:
        """The name of the function."""
        return getattr(self.function, "__name__", "a kernel")

    @property
    def where(self) -> str:
        """Where the kernel applies: the words or the source of ``when``."""
        return "everywhere" if self.when is None else described(self.when)

    def accepts(
        self, types: Sequence[ArrayType | None], static: Mapping[str, Any]
    ) -> bool:
        """Whether the kernel takes operands of these types (None: not given).

        ``static`` are the static arguments by name.
        """
        return self.when is None or self.when(*types, **static)


def described(condition: Condition) -> str:
    """Describe a condition: the first line of its docstring, or a lambda's source."""
    if condition.__doc__:
        return condition.__doc__.strip().splitlines()[0].rstrip(".")
    name = getattr(condition, "__name__", repr(condition))
    if name != "<lambda>":
        return name
    try:
        text = textwrap.dedent(inspect.getsource(condition)).strip()
        whole = ast.parse(text if not text.startswith("@") else f"{text}\ndef f(): ...")
    except (OSError, SyntaxError):
        return name
    lambdas = [node for node in ast.walk(whole) if isinstance(node, ast.Lambda)]
    return ast.unparse(lambdas[0].body) if len(lambdas) == 1 else name


def operators_of(program: Program) -> Iterator[str]:
    """Yield the operators that ``program`` calls, nested Programs included."""
    for equation in walk(program.equations):
        if equation.primitive.name == "operator_call":
            yield equation.params["name"]


def _is_noted(kernel: OperatorKernel) -> bool:
    """Whether transformations that use the body instead of ``kernel`` warn.

    They do not for a kernel that is not compared with the body, nor for one that was
    made of the body's source.
    """
    return kernel.check is not False and not kernel.compiles_body


class KernelTable:
    """The registered kernels by operator and backend; the latest is tried first."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, str], list[OperatorKernel]] = {}
        self._listeners: list[Callable[[str], None]] = []  # see ``on_change``
        self._defined: set[str] = set()  # operators that a function defines
        self._with_kernels: set[str] = set()  # operators that have a kernel

    def define(self, operator: str) -> None:
        """Record that a function defines ``operator``.

        The first definition keeps kernels that a backend has registered; a later one
        removes the kernels of the earlier function.
        """
        if operator in self._defined:
            self.forget(operator)
        self._defined.add(operator)

    def on_change(self, function: Callable[[str], None]) -> Callable[[str], None]:
        """Call ``function`` with the name of each operator whose kernels change."""
        self._listeners.append(function)
        return function

    def _changed(self, operator: str) -> None:
        """Tell the listeners that the kernels of ``operator`` changed."""
        self._with_kernels = {name for name, _ in self._kernels}
        for function in self._listeners:
            function(operator)

    def register(self, kernel: OperatorKernel) -> None:
        """Add ``kernel``, which is tried before earlier ones."""
        self._put(kernel)
        self._changed(kernel.operator)

    def _put(self, kernel: OperatorKernel, position: int = 0) -> None:
        """Insert ``kernel`` at ``position`` among those of its operator and backend."""
        key = kernel.operator, kernel.backend
        self._kernels.setdefault(key, []).insert(position, kernel)
        if _is_noted(kernel):
            note_kernel(kernel.operator, f"{kernel.title} for {kernel.backend}")

    def prefer(self, kernel: OperatorKernel) -> None:
        """Move ``kernel``, which is registered, to the front, to be tried first."""
        self._remove(kernel)
        self._put(kernel)
        self._changed(kernel.operator)

    def replace(self, kernel: OperatorKernel, by: OperatorKernel) -> None:
        """Replace the registered ``kernel`` by ``by``, in the same position."""
        self._put(by, self._remove(kernel))
        self._changed(kernel.operator)

    def remove(self, kernel: OperatorKernel) -> None:
        """Forget ``kernel``, which is registered."""
        self._remove(kernel)
        self._changed(kernel.operator)

    def _remove(self, kernel: OperatorKernel) -> int:
        """Remove ``kernel``; return its position among those of its backend."""
        key = kernel.operator, kernel.backend
        position = self._kernels[key].index(kernel)
        del self._kernels[key][position]
        if not self._kernels[key]:
            del self._kernels[key]
        # Notes are per operator: those of the remaining kernels are written again.
        forget_kernels(kernel.operator)
        for other in self.of(kernel.operator):
            if _is_noted(other):
                note_kernel(other.operator, f"{other.title} for {other.backend}")
        return position

    def forget(self, operator: str) -> None:
        """Remove the kernels of ``operator``."""
        for key in [key for key in self._kernels if key[0] == operator]:
            del self._kernels[key]
        forget_kernels(operator)
        self._changed(operator)

    def names(self) -> frozenset[str]:
        """Return the operators that have kernels."""
        return frozenset(self._with_kernels)

    def has(self, operator: str) -> bool:
        """Whether ``operator`` has a kernel, for any backend."""
        return operator in self._with_kernels

    def of(self, operator: str, backend: str | None = None) -> list[OperatorKernel]:
        """Return the kernels of ``operator`` for ``backend``, or for all backends."""
        return [
            kernel
            for (name, kernel_backend), kernels in self._kernels.items()
            if name == operator and backend in (None, kernel_backend)
            for kernel in kernels
        ]

    def find(
        self,
        operator: str,
        backend: str,
        types: Sequence[ArrayType | None],
        static: Mapping[str, Any],
        deterministic: bool = True,
    ) -> OperatorKernel | None:
        """Find the first kernel that accepts these operands; None stands for the body.

        ``types`` are the operands' (None: not given), ``static`` the static arguments
        by name. Kernels whose results vary from run to run are left out if results must
        be ``deterministic``.
        """
        for kernel in self._kernels.get((operator, backend), ()):
            allowed = kernel.deterministic or not deterministic
            if allowed and kernel.accepts(types, static):
                return kernel
        return None

    def has_for(self, backend: str) -> Callable[[Equation], bool]:
        """Return the function that says whether ``backend`` has a kernel for a call."""
        return lambda call: self.for_call(call, backend) is not None

    def for_call(
        self, equation: Equation, backend: str, deterministic: bool = True
    ) -> OperatorKernel | None:
        """Return the kernel for an ``operator_call``; None if there is none.

        None too if a transformation changed the operator's body: a kernel computes the
        operator itself, or its ``vmap`` if the kernel has a method for that. If it has
        none, a warning says that the kernel is not used. ``deterministic`` is as for
        ``find``.
        """
        name = equation.params.get("name")
        if name is None or equation.primitive.name != "operator_call":
            return None
        backend = backend.partition(":")[0]  # of "cuda:1", say
        mapped = equation.params.get("mapped", ())
        # Transformations prefix the body's name: "batched_" by vmap, others by others.
        if equation.params["body"].name != "batched_" * len(mapped) + body_name(name):
            return None
        operand_types = [atom.type for atom in equation.inputs]
        static = static_of(equation)
        if mapped:
            operand_types = [
                member_type(t, mapped, k) for k, t in enumerate(operand_types)
            ]
        types = with_absent(operand_types, equation.params.get("absent", ()))
        if not mapped:
            return self.find(name, backend, types, static, deterministic)
        kernel = self.find(name, backend, types, static, deterministic)
        if kernel is None or kernel.lowered:
            return None
        if kernel.vmap is None:
            warn_dropped(equation, VMAP)
            return None
        return replace(kernel, views=row_major_only)


def body_name(operator: str) -> str:
    """Return the name of the body's Program, which is an identifier."""
    return operator.replace(".", "_")


def static_of(equation: Equation) -> dict[str, Any]:
    """Return the static arguments of an ``operator_call``, by name."""
    return dict(equation.params.get("static", ()))


def with_absent(operands: Sequence[Any], absent: Sequence[int]) -> list[Any]:
    """Insert None into ``operands`` where the caller left an operand out.

    ``absent`` has these positions in the result, in ascending order. Results may follow
    the operands.

    >>> with_absent(["x", "bias"], (1,))
    ['x', None, 'bias']
    """
    with_none = list(operands)
    for position in absent:
        with_none.insert(position, None)
    return with_none


def member_type(
    type: ArrayType, mapped: Sequence[tuple[int, Sequence[bool]]], operand: int
) -> ArrayType:
    """Return the type of one member of operand number ``operand`` of a mapped operator.

    ``mapped`` is the parameter of the mapped ``operator_call``.
    """
    axes = sum(is_mapped[operand] for _, is_mapped in mapped)
    return ArrayType(type.shape[axes:], type.dtype, weak=type.weak)


KERNELS: Final = KernelTable()
