"""What ``jit`` was asked to compile, and how: a function with its options.

Its calls are traced here, and inside a trace they become an equation of the Program
around them. ``compiling`` lowers and loads what was traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arrayfn import tree
from arrayfn.backends.base import Backend
from arrayfn.backends.registry import get_backend
from arrayfn.compilation.static_arguments import (
    StaticArguments,
    StaticParameters,
)
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import ArrayType
from arrayfn.lowering.options import Options
from arrayfn.primitives.calls import operator_call
from arrayfn.primitives.rules import as_list
from arrayfn.records import frozen
from arrayfn.tracing import apply, device_of
from arrayfn.tracing.frames import current_frame
from arrayfn.tracing.references import RefWrittenError, is_of_a_body
from arrayfn.transforms import FlatTrace, Function, name_of, trace_function


@frozen
class Compiler:
    """A function and how ``jit`` was asked to compile it.

    Its methods take the arguments of one call: ``args`` and ``kwargs`` are pytrees
    without the static arguments, which ``static`` holds, and ``leaves`` their leaves.

    Attributes:
        function: the Python function.
        backend: the backend of the device that was named; None runs where the
            arguments are.
        static: the parameters whose values the function is compiled for.
        donated: the parameters whose arrays may be overwritten.
        options: how Programs are lowered.
        checks: the kinds of checks added, as ``kinds_of`` gives them.
    """

    function: Function
    backend: Backend | None
    static: StaticParameters
    donated: StaticParameters
    options: Options
    checks: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return name_of(self.function)

    def backend_of(self, values: Sequence[Any]) -> Backend:
        """Return the backend that computes on ``values``, leaves of the arguments.

        It is the one that was named, else the one of the device they are on.
        """
        return self.backend or get_backend(device_of(values) or "cpu")

    def trace(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        static: StaticArguments,
        types: Sequence[ArrayType] | None = None,
        platform: str = "",
    ) -> FlatTrace:
        """Trace the function to a Program.

        ``types`` are those of the leaves, for a Program to be compiled by itself; None
        takes them from the leaves, for one that becomes a part of another. ``platform``
        names the backend for which ``platform_dependent`` chooses a branch.
        """
        traced = trace_function(
            static.bound(self.function),
            args,
            kwargs,
            types=types,
            abstract=True,
            with_values=False,
            checks=self.checks,
            whole=types is not None,
            platform=platform,
        )
        if traced.trace.asks_platform and self.backend is None:
            # Constants on a device decide where it runs.
            device_platform = device_of(traced.program.constant_values) or platform
            if device_platform != platform:
                return self.trace(args, kwargs, static, types, device_platform)
        return traced

    def inline(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        static: StaticArguments,
        leaves: list[Any],
    ) -> Any:
        """Call the function inside a trace: emit one operator_call of its Program.

        A function that writes to Refs from outside is traced as if it was not jitted.
        """
        self._check_around()
        try:
            traced = self.trace(args, kwargs, static)
        except RefWrittenError as written:
            if not is_of_a_body(written):
                raise
            return static.bound(self.function)(*args, **kwargs)
        return self.apply(traced, leaves)

    def apply(self, traced: FlatTrace, leaves: list[Any]) -> Any:
        """Return the results of an operator_call of the traced function on ``leaves``.

        The Program also takes values of enclosing functions, which it captured.
        """
        operands = [*leaves, *traced.trace.captured]
        results = apply(operator_call, *operands, name=self.name, body=traced.program)
        return tree.unflatten(traced.out_tree, as_list(results))

    def _check_around(self) -> None:
        """Raise ArgumentError if only a part of what is compiled asks for checks."""
        frame = current_frame()
        missing = self.checks - (self.checks if frame is None else frame.checks)
        if frame is not None and missing:
            raise ArgumentError(
                f"{self.name} is to be checked ({', '.join(sorted(missing))}), but is "
                f"called while {frame.name!r} is traced, which is not: a function is "
                "checked as a whole. Ask for the checks where the whole is compiled, "
                f"as in jit(grad({self.name}), checks=...)",
                user_location(),
            )
