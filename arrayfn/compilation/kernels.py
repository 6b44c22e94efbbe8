"""Lists the implementations of an operator, and says which of them is taken.

af.kernels(nn.softmax)                # all, by backend, the preferred one first
af.kernels(nn.softmax, x)             # and which of them takes x
af.get_kernel("cpu", nn.softmax, x)   # that one; None stands for the body
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from typing_extensions import override

from arrayfn.backends.registry import get_backend
from arrayfn.compilation.jit import jit
from arrayfn.compilation.operators import Operator
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import Equation, Program
from arrayfn.lowering.operator_kernels import KERNELS, OperatorKernel
from arrayfn.passes.inline_calls import inline_calls
from arrayfn.records import frozen
from arrayfn.transforms import make_program

BODY: Final = "body"
_GENERATED: Final = ("cpu", "cuda")
_COLUMNS: Final = ("implementation", "backend", "operator", "applies to", "options")


@frozen
class Implementation:
    """One implementation of an operator: a registered kernel, or the body.

    ``kernel`` is None for the body, which generated kernels, library calls or the
    interpreter compute. ``where`` says which operands the implementation takes.
    ``taken`` says whether the implementation computes the operands of this call of
    ``kernels``. ``taken`` is None if the call had no operands. ``options`` are words
    about the implementation, such as "prepared" or "traced inline".
    """

    name: str
    backend: str
    operator: str
    where: str
    options: str = ""
    kernel: OperatorKernel | None = None
    taken: bool | None = None


@frozen(repr=False)
class Implementations(Sequence[Implementation]):
    """The list that ``kernels`` returns. Its text is a table."""

    operator: str
    rows: tuple[Implementation, ...]

    @override
    def __len__(self) -> int:
        return len(self.rows)

    @override
    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def _cells(self) -> list[tuple[str, ...]]:
        """Return the rows of the table as text; a star marks the one that is taken."""
        marks = {True: "* ", False: "  ", None: ""}
        return [
            (marks[r.taken] + r.name, r.backend, r.operator, r.where, r.options)
            for r in self
        ]

    @override
    def __repr__(self) -> str:
        cells = [_COLUMNS, *self._cells()]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
        if any(row.taken for row in self):
            lines.append("* computes these operands")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return what a notebook shows, as HTML."""
        from arrayfn.display import markup

        rows = [tuple(map(markup.escape, cells)) for cells in self._cells()]
        body = markup.table(_COLUMNS, rows, texts=len(_COLUMNS))
        return markup.shown(f"Implementations of {self.operator}", body)


def kernels(
    operator: Operator[..., Any], *args: Any, backend: str | None = None, **static: Any
) -> Implementations:
    """List the implementations of ``operator``, by backend, in order of preference.

    Each row says which operands the implementation applies to. The last implementation
    of a backend is the operator's body. Operators that the body calls are listed after
    it. With operands ``args`` (and static arguments), the list marks the
    implementations that are used for these operands. It also names the kernels and
    libraries that the body is compiled to. ``backend`` limits the list to one backend.

    Raises ArgumentError if ``operator`` is not an operator.

    >>> import arrayfn.nn as nn
    >>> print(kernels(nn.softmax, backend="cpu"))
    implementation  backend  operator    applies to  options
    body            cpu      nn.softmax  everywhere  traced inline
    """
    checked = _checked_operator(operator)
    names = [checked.name, *checked.parts]
    known = [kernel.backend for name in names for kernel in KERNELS.of(name)]
    backends = dict.fromkeys((*_GENERATED, "reference", *known))
    if backend is not None:
        get_backend(backend)
        backends = {backend: None}
    program = None
    if args:
        program = make_program(partial(operator, **static))(*args)
    rows: list[Implementation] = []
    for target in backends:
        taken = None if program is None else list(_used_kernels(program, target))
        for name in names:
            rows += (_row(kernel, taken) for kernel in KERNELS.of(name, target))
            if name == checked.name:
                rows.append(_body(checked, target, args, static, taken))
    return Implementations(checked.name, tuple(rows))


def get_kernel(
    backend: str, operator: Operator[..., Any], *args: Any, **static: Any
) -> OperatorKernel | None:
    """Return the kernel of ``operator`` that ``backend`` uses for operands ``args``.

    Without operands, the result is the kernel that is tried first. None stands for the
    body.

    Raises BackendError for an unknown backend, and ArgumentError if ``operator`` is not
    an operator.

    >>> import arrayfn.nn as nn
    >>> print(get_kernel("cpu", nn.softmax))
    None
    """
    checked, target = _checked_operator(operator), get_backend(backend).name
    if not args:
        return next(iter(KERNELS.of(checked.name, target)), None)
    program = make_program(partial(operator, **static))(*args)
    taken = _used_kernels(program, target)
    return next((kernel for kernel in taken if kernel.operator == checked.name), None)


def _checked_operator(value: Any) -> Operator[..., Any]:
    """Return ``value`` if it is an operator; raise ArgumentError if not."""
    if isinstance(value, Operator):
        return value
    name = getattr(value, "__name__", repr(value))
    raise ArgumentError(
        f"{name} is not an operator, so it has no kernels; make it one with "
        f"af.operator({name}), or give an operator such as af.nn.softmax",
        user_location(),
    )


def _used_kernels(program: Program, backend: str) -> Iterator[OperatorKernel]:
    """Yield the kernels that ``backend`` uses for the calls in ``program``."""

    def kernel_of(equation: Equation) -> OperatorKernel | None:
        """Return the kernel that ``backend`` uses for a call, or None."""
        return KERNELS.for_call(equation, backend)

    inlined = inline_calls(program, keep=lambda call: kernel_of(call) is not None)
    for equation in inlined.equations:
        kernel = kernel_of(equation)
        if kernel is not None:
            yield kernel
        for inner in equation.subprograms() if kernel is None else ():
            yield from _used_kernels(inner, backend)


def _row(
    kernel: OperatorKernel, taken: Sequence[OperatorKernel] | None
) -> Implementation:
    """Return the row of the table for ``kernel``.

    ``taken`` are the kernels that compute the operands; None without operands.
    """
    options = {
        "prepared": kernel.prepared,
        "generated": kernel.lowered,
        "any order": not kernel.deterministic,
        "unchecked": kernel.check is False and not kernel.lowered,
        f"vmap={kernel.vmap}": kernel.vmap is not None,
    }
    return Implementation(
        kernel.title,
        kernel.backend,
        kernel.operator,
        kernel.where,
        ", ".join(text for text, holds in options.items() if holds),
        kernel,
        None if taken is None else kernel in taken,
    )


def _body(
    operator: Operator[..., Any],
    backend: str,
    args: tuple[Any, ...],
    static: dict[str, Any],
    taken: Sequence[OperatorKernel] | None,
) -> Implementation:
    """Return the row of the table for the operator's body on ``backend``.

    It computes the operands ``args`` if the kernels ``taken`` for them are not this
    operator's. ``taken`` is None without operands.
    """
    options = "traced inline" if operator.inline else "inlined"
    if backend not in _GENERATED:
        options = "interpreted" if backend.startswith("reference") else options
    is_taken = None
    if taken is not None:
        is_taken = all(kernel.operator != operator.name for kernel in taken)
        if is_taken and backend in _GENERATED:
            lowered = jit(partial(operator, **static), device=backend).lower(*args)
            options = ", ".join(kernel.name for kernel in lowered.kernels)
    return Implementation(
        BODY, backend, operator.name, "everywhere", options, taken=is_taken
    )


__all__ = ["Implementation", "Implementations", "get_kernel", "kernels"]
