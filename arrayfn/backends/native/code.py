"""Compiles native routines: those of a Python module are one native module.

A module is compiled, or found in the cache, when one of its routines is first needed,
with the modules that it imports routines from: those are loaded before it, and calls
between modules are bound by name. So a process has the code that its plans run, and
which code that is follows from the modules' imports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from arrayfn.backends import native
from arrayfn.backends.native import (
    CFunction,
    Routine,
    calls,
    compiler,
    emitter,
    expressions,
    memory,
    operations,
    routines_in,
    structures,
    target,
)
from arrayfn.backends.native.engine import ENGINE
from arrayfn.backends.native.loading import Unit, load, toolchain
from arrayfn.backends.object_cache import content_key

Module = Mapping[str, Any]
"""The globals of a Python module, by name, as ``vars`` gives them."""
_COMPILER: Final = (
    native,
    structures,
    compiler,
    expressions,
    calls,
    memory,
    emitter,
    operations,
)
"""The modules of this compiler, whose source texts are part of cache keys."""


def native_address(routine: Routine[..., Any]) -> int:
    """The address of ``routine``, whose module is compiled or loaded if need be.

    Raises NativeSyntaxError where a routine uses what its language does not have.
    """
    if ENGINE.find(routine.symbol) is None:
        load(native_units(routine))
    return ENGINE.address(routine.symbol)


def native_addresses(*routines: Routine[..., Any]) -> tuple[int, ...]:
    """The addresses of ``routines``."""
    return tuple(map(native_address, routines))


def native_units(*routines: Routine[..., Any]) -> list[Unit]:
    """The modules of ``routines`` that are not loaded, as units, dependencies first.

    A module is behind those that it imports routines from.
    """
    modules: dict[str, Module] = {}

    def add(routine: Routine[..., Any]) -> None:
        """Note the routine's module, after the modules whose routines it calls."""
        module = routine.module
        if module["__name__"] not in modules and ENGINE.find(routine.symbol) is None:
            for used in routines_in(module):
                if used.module is not module:
                    add(used)
            modules[module["__name__"]] = module

    for routine in routines:
        add(routine)
    return [_unit(module) for module in modules.values()]


def _unit(module: Module) -> Unit:
    """The routines of a module, as one unit of compilation."""
    symbols = tuple(
        routine.symbol for routine in routines_in(module) if routine.module is module
    )
    return Unit(_key(module), symbols, partial(_prepare, module))


def _prepare(module: Module) -> Callable[[], bytes]:
    """Compile ``module`` to LLVM IR; return what makes object code of that."""
    text = compiler.compile_module(module, target.host().triple)
    return partial(target.compile_quickly, text)


@cache
def _compiler_key() -> str:
    """The part of a cache key that identifies the native compiler."""
    sources = (Path(str(part.__file__)).read_text("utf-8") for part in _COMPILER)
    return content_key(*sources, toolchain())


def _key(module: Module) -> str:
    """The cache key of a module's code.

    It covers the module's source text, those of the modules of its structures, the
    constants and functions among its names, imported ones included, and the compiler.
    """
    names = sorted(
        f"{name}={text}" for name, value in module.items() if (text := _identity(value))
    )
    paths = {part["__file__"]: None for part in (module, *_structure_modules(module))}
    sources = (Path(path).read_text("utf-8") for path in paths)
    return content_key("native", *sources, "\n".join(names), _compiler_key())


def _identity(value: object) -> str:
    """The part of a cache key that identifies ``value``, a global of a module."""
    if isinstance(value, Routine):
        return f"{value.symbol}{value.function.__annotations__}"
    if isinstance(value, type) and issubclass(value, IntEnum):
        return str(list(value))
    kinds = (int, float, CFunction, structures.External)
    return str(value) if isinstance(value, kinds) else ""


def _structure_modules(module: Module) -> Iterator[Module]:
    """The modules of the structures that ``module`` uses, also through others."""
    seen = {module["__name__"]}
    modules = [module]
    while modules:
        for value in modules.pop().values():
            if structures.is_struct(value) and value.__module__ not in seen:
                seen.add(value.__module__)
                modules.append(vars(sys.modules[value.__module__]))
                yield modules[-1]
