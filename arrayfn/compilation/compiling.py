"""Compiles a traced function for one signature of its arguments.

A backend lowers the Program to kernels and a plan, and loads them. The functions here
take a ``Compiler``, and the arguments of one call as its methods do.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np

from arrayfn import tree
from arrayfn.backends.base import Backend
from arrayfn.backends.registry import choose, get_backend
from arrayfn.compilation.building import Built
from arrayfn.compilation.compiler import Compiler
from arrayfn.compilation.freezing import freeze_program
from arrayfn.compilation.own_constants import with_own_constants
from arrayfn.compilation.stages import Lowered
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import Program
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.operator_kernels import KERNELS, operators_of
from arrayfn.passes.checks import with_checks
from arrayfn.passes.faults import Site
from arrayfn.passes.meshes import has_shard_map, mesh_of
from arrayfn.primitives.assertions import has_check
from arrayfn.records import frozen
from arrayfn.tracing import device_of
from arrayfn.transforms import FlatTrace


@frozen
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


def lower(
    compiler: Compiler,
    traced: FlatTrace,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    backend: Backend,
) -> Lowered:
    """Lower a traced function for ``backend``, or for the mesh of its arrays."""
    program = with_own_constants(traced.program)
    # Captured arrays, or arrays over a mesh, may decide where the function runs.
    if device_of(program.constant_values):
        backend = compiler.backend_of(program.constant_values)
    mesh = mesh_of(program)
    if mesh is not None and (
        compiler.backend is None or compiler.backend.name == mesh.platform == "cuda"
    ):
        _check_on_mesh(compiler, program)
        backend = get_backend("mesh")
    donated = frozenset(_donated_leaves(compiler, args, kwargs))
    notes: tuple[str, ...] = ()
    has_kernel = KERNELS.has_for(backend.name)
    if compiler.options.freeze is not None:
        program, notes = freeze_program(program, compiler.options.freeze, has_kernel)
    with _collector_paused():
        program, sites = with_checks(program, compiler.checks, has_kernel)
        compiled_program = backend.lower(program, donated, compiler.options)
    return Lowered(
        program,
        compiled_program,
        tree.structure((args, kwargs)),
        traced.out_tree,
        backend,
        sites,
        compiler.options,
        donated,
        notes=notes,
    )


def _check_on_mesh(compiler: Compiler, program: Program) -> None:
    """Raise ArgumentError for checks inside a ``shard_map`` of ``program``."""
    if has_shard_map(program) and (compiler.checks or has_check(program)):
        raise ArgumentError(
            f"{compiler.name} has a shard_map, which is checked on one device: write "
            f"jit({compiler.name}, device='cpu')",
            user_location(),
        )


def _donated_leaves(
    compiler: Compiler, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[int]:
    """Return the indices of the leaves of ``(args, kwargs)`` that may be overwritten.

    ``args`` and ``kwargs`` have no static arguments.
    """
    if not compiler.donated:
        return []
    # The positions, among all arguments, of those in ``args``.
    positions = (k for k in count() if k not in compiler.static.positions)
    arguments = [
        *((k in compiler.donated.positions, x) for k, x in zip(positions, args)),  # noqa: B905
        *((k in compiler.donated.names, kwargs[k]) for k in sorted(kwargs)),
    ]
    is_donated = [donated for donated, x in arguments for _ in tree.leaves(x)]
    return [number for number, donated in enumerate(is_donated) if donated]


def compile_traced(
    compiler: Compiler,
    traced: FlatTrace,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    backend: Backend,
    built: Built,
) -> CompiledSignature:
    """Lower and load a traced function; ``built`` records how far that has come."""
    built.stage = "lowering"
    if compiler.backend is not None:
        choose(backend.name)  # raises if this machine lacks the backend
    lowered = lower(compiler, traced, args, kwargs, backend)
    built.stage, built.kernels = "compiling", len(lowered.kernels)
    array_types = lowered.backend.array_types()
    return CompiledSignature(
        run=lowered.load(),
        out_tree=lowered.out_tree,
        single=lowered.out_tree == tree.structure(0),  # that of one array
        kept_types=(np.ndarray, float, int, bool, *array_types),
        is_on_device=bool(array_types),
        operators=traced.trace.inlined.union(operators_of(lowered.program)),
        built=built,
        compiled=lowered.compiled_program,
        backend=lowered.backend,
        sites=lowered.sites,
        asks_mesh=traced.trace.asks_mesh,
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
