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
    """Return the address of ``routine``; load or compile its module if needed.

    Raises NativeSyntaxError if a routine uses Python that native routines do not have.
    """
    if ENGINE.find(routine.symbol) is None:
        load(native_units(routine))
    return ENGINE.address(routine.symbol)


def native_addresses(*routines: Routine[..., Any]) -> tuple[int, ...]:
    """Return the addresses of ``routines``; load or compile their modules if needed."""
    return tuple(map(native_address, routines))


def native_units(*routines: Routine[..., Any]) -> list[Unit]:
    """Return a Unit for each module that must be loaded to call ``routines``.

    These are the modules of ``routines``, and those that they import routines from, as
    far as they are not loaded yet. A module comes after those that it imports from.
    """
    modules: dict[str, Module] = {}

    def add(routine: Routine[..., Any]) -> None:
        """Add the routine's module, after the modules that it imports routines from."""
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
    """Return the Unit that compiles all routines that ``module`` defines."""
    symbols = tuple(
        routine.symbol for routine in routines_in(module) if routine.module is module
    )
    return Unit(_key(module), symbols, partial(_prepare, module))


def _prepare(module: Module) -> Callable[[], bytes]:
    """Compile ``module`` to LLVM IR; return a function that makes object code of it."""
    text = compiler.compile_module(module, target.host().triple)
    return target.prepare_quick(text).compile


@cache
def _compiler_key() -> str:
    """Return the part of a cache key that identifies the native compiler and LLVM."""
    sources = (Path(str(part.__file__)).read_text("utf-8") for part in _COMPILER)
    return content_key(*sources, toolchain())


def _key(module: Module) -> str:
    """Return the cache key of a module's code: a hash of all that determines it.

    That is the module's source text, those of the modules that define its structures,
    the constants and functions among its globals, imported ones included, and the
    compiler.
    """
    names = sorted(
        f"{name}={text}" for name, value in module.items() if (text := _identity(value))
    )
    paths = {part["__file__"]: None for part in (module, *_structure_modules(module))}
    sources = (Path(path).read_text("utf-8") for path in paths)
    return content_key("native", *sources, "\n".join(names), _compiler_key())


def _identity(value: object) -> str:
    """Return text that identifies ``value``, a module's global, in a cache key.

    Globals that do not determine the module's code, such as a class, give "".
    """
    if isinstance(value, Routine):
        return f"{value.symbol}{value.function.__annotations__}"
    if isinstance(value, type) and issubclass(value, IntEnum):
        return str(list(value))
    kinds = (int, float, CFunction, structures.External)
    return str(value) if isinstance(value, kinds) else ""


def _structure_modules(module: Module) -> Iterator[Module]:
    """Yield the modules that define structures among the globals of ``module``.

    Structures among the globals of these modules are followed too. ``module`` itself is
    left out.
    """
    seen = {module["__name__"]}
    modules = [module]
    while modules:
        for value in modules.pop().values():
            if structures.is_struct(value) and value.__module__ not in seen:
                seen.add(value.__module__)
                modules.append(vars(sys.modules[value.__module__]))
                yield modules[-1]
