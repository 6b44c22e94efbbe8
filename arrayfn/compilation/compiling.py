"""Compiles a function for one signature of its arguments.

The function is traced to a Program, which a backend lowers to kernels and a plan, and
loads. Inside a trace its Program becomes an equation of the Program around it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from arrayfn import tree
from arrayfn.backends.base import Backend
from arrayfn.backends.registry import choose, get_backend
from arrayfn.compilation.building import Built
from arrayfn.compilation.freezing import frozen
from arrayfn.compilation.own_constants import with_own_constants
from arrayfn.compilation.stages import Lowered
from arrayfn.compilation.static_arguments import (
    StaticArguments,
    StaticParameters,
)
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import ArrayType, Program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.operator_kernels import KERNELS, operators_of
from arrayfn.lowering.options import Options
from arrayfn.passes.checks import with_checks
from arrayfn.passes.faults import Site
from arrayfn.passes.meshes import has_shard_map, mesh_of
from arrayfn.primitives.assertions import has_check
from arrayfn.primitives.calls import operator_call
from arrayfn.tracing import apply, device_of
from arrayfn.tracing.frames import current_frame
from arrayfn.tracing.references import RefWrittenError, is_of_a_body
from arrayfn.transforms import FlatTrace, Function, name_of, trace_function


@dataclass(frozen=True)
class CompiledSignature:
    """The executable of a jitted function for one signature, and its records.

    Attributes:
        run: the executable, a function of flat arrays.
        out_tree: the structure of the results.
        single: whether the result is one array.
        kept_types: the types of arguments that ``run`` takes without conversion.
        is_on_device: whether the backend has arrays of its own.
        operators: the operators that the Program calls.
        built: the record of the compilation.
        compiled: the plan and the kernels.
        backend: what compiled it.
        sites: the sites of its checks.
        asks_mesh: whether it is for one mesh of ``set_mesh``.
    """

    run: Callable[..., Any]
    out_tree: tree.TreeDef
    single: bool
    kept_types: tuple[type, ...]
    is_on_device: bool
    operators: frozenset[str]
    built: Built
    compiled: CompiledProgram
    backend: Backend
    sites: tuple[Site, ...]
    asks_mesh: bool

    @property
    def began(self) -> float:
        """The time at which compilation began, by ``time.perf_counter``."""
        return self.built.begin

    @property
    def seconds(self) -> float:
        """The seconds that compilation took."""
        return self.built.seconds


@dataclass(frozen=True)
class Compiler:
    """Traces, lowers and loads a function with the options of ``jit``.

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
        """The backend that computes on ``values``, leaves of the arguments.

        It is the one that ``jit`` was given, else that of the device they are on.
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

        ``types`` are those of the leaves, for a Program to be compiled by itself; with
        None, for a Program that becomes a part of another, they are taken from the
        leaves. ``platform`` names the backend for which ``platform_dependent`` chooses
        a branch.
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
            there = device_of(traced.program.constant_values) or platform
            if there != platform:
                return self.trace(args, kwargs, static, types, there)
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
        """Emit an operator_call of the traced function; returns its results.

        Its operands are ``leaves`` and the values of enclosing functions that it
        captured.
        """
        operands = [*leaves, *traced.trace.captured]
        results = apply(operator_call, *operands, name=self.name, body=traced.program)
        if not isinstance(results, tuple):
            results = (results,)
        return tree.unflatten(traced.out_tree, list(results))

    def _check_around(self) -> None:
        """Raise ArgumentError if only an inner function asks for checks."""
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

    def _check_on_mesh(self, program: Program) -> None:
        """Raise ArgumentError for checks inside a ``shard_map`` of ``program``."""
        if has_shard_map(program) and (self.checks or has_check(program)):
            raise ArgumentError(
                f"{self.name} has a shard_map, which is checked on one device: write "
                f"jit({self.name}, device='cpu')",
                user_location(),
            )

    def lower(
        self,
        traced: FlatTrace,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        backend: Backend,
    ) -> Lowered:
        """Lower a traced function for ``backend``, or for the mesh of its arrays."""
        program = with_own_constants(traced.program)
        if device_of(program.constant_values):
            backend = self.backend_of(program.constant_values)
        mesh = mesh_of(program)
        if mesh is not None and (
            self.backend is None or self.backend.name == mesh.platform == "cuda"
        ):
            self._check_on_mesh(program)
            backend = get_backend("mesh")
        donated = frozenset(self._donated_leaves(args, kwargs))
        notes: tuple[str, ...] = ()
        has_kernel = KERNELS.has_for(backend.name)
        if self.options.freeze is not None:
            program, notes = frozen(program, self.options.freeze, has_kernel)
        with _collector_paused():
            program, sites = with_checks(program, self.checks, has_kernel)
            compiled_program = backend.lower(program, donated, self.options)
        return Lowered(
            program,
            compiled_program,
            tree.structure((args, kwargs)),
            traced.out_tree,
            backend,
            sites,
            self.options,
            donated,
            notes=notes,
        )

    def _donated_leaves(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[int]:
        """The numbers of the leaves of ``(args, kwargs)`` that may be overwritten."""
        if not self.donated:
            return []
        positions = (k for k in count() if k not in self.static.positions)
        arguments = [
            *((k in self.donated.positions, x) for k, x in zip(positions, args)),  # noqa: B905
            *((k in self.donated.names, kwargs[k]) for k in sorted(kwargs)),
        ]
        is_donated = [donated for donated, x in arguments for _ in tree.leaves(x)]
        return [number for number, donated in enumerate(is_donated) if donated]

    def compile(
        self,
        traced: FlatTrace,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        backend: Backend,
        built: Built,
    ) -> CompiledSignature:
        """Lower and load a traced function; ``built`` records how far that has come."""
        built.stage = "lowering"
        if self.backend is not None:
            choose(backend.name)  # it may be missing here, and only be lowered for
        lowered = self.lower(traced, args, kwargs, backend)
        built.stage, built.kernels = "compiling", len(lowered.kernels)
        array_types = lowered.backend.array_types()
        return CompiledSignature(
            lowered.load(),
            lowered.out_tree,
            lowered.out_tree == tree.structure(0),
            (np.ndarray, float, int, bool, *array_types),
            bool(array_types),
            traced.trace.inlined.union(operators_of(lowered.program)),
            built,
            lowered.compiled_program,
            lowered.backend,
            lowered.sites,
            traced.trace.asks_mesh,
        )


@contextmanager
def _collector_paused() -> Generator[None]:
    """Pause the garbage collector while the compiler runs.

    Lowering makes many objects and hardly any cycles. The collector would traverse them
    each time their number grows by a quarter, for a third to a half of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
