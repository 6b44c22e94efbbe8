"""From native routines to addresses: each Python module of them is one native module.

A module is compiled, or found in the cache, when one of its routines is first needed,
with the modules that it imports routines from: those are loaded before it, and calls
between modules are bound by name. So a process has the code that its plans run, and
which code that is follows from the modules' imports. A routine that is only called by
its address, which is among a provider's words, is not imported by name but as an
attribute of its module, and is there when a provider asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from arrayfn.backends.cpu import (
    native,
    native_compiler,
    native_operations,
    target,
)
from arrayfn.backends.cpu.code import LOCK, Compilation, compile_all, toolchain
from arrayfn.backends.cpu.engine import ENGINE
from arrayfn.backends.cpu.native import CFunction, Routine
from arrayfn.backends.object_cache import content_key, object_cache

Module = Mapping[str, Any]  # by its names, as ``vars`` gives them
_COMPILER: Final = (native, native_compiler, native_operations)


def native_address(routine: Routine) -> int:
    """The address of ``routine``, whose module is compiled or found in the cache.

    Raises NativeSyntaxError where a routine uses what its language does not have.
    """
    if ENGINE.find(routine.symbol) is None:
        with LOCK:
            _load(routine.module)
    return ENGINE.address(routine.symbol)


def native_addresses(*routines: Routine) -> tuple[int, ...]:
    """The addresses of ``routines``."""
    return tuple(map(native_address, routines))


def _load(module: Module) -> None:
    """Load a module, and before it those whose routines it calls."""
    modules = {_key(part): part for part in _with_callees(module)}
    codes = {key: object_cache().get(key) for key in modules}
    missing = {key: modules[key] for key, code in codes.items() if code is None}
    compiled = compile_all(_compilation(key, part) for key, part in missing.items())
    for key, part in modules.items():
        own = (routine for routine in _routines(part) if routine.module is part)
        code = codes[key] or compiled[key]
        ENGINE.load(key, code, tuple(routine.symbol for routine in own))


def _routines(module: Module) -> list[Routine]:
    """The native routines of a module, and those that it imports."""
    return [value for value in module.values() if isinstance(value, Routine)]


def _with_callees(module: Module) -> list[Module]:
    """``module`` behind those that it imports routines from, as far as not loaded."""
    found: dict[str, Module] = {}

    def add(module: Module) -> None:
        if module["__name__"] in found:
            return
        for routine in _routines(module):
            if routine.module is not module and ENGINE.find(routine.symbol) is None:
                add(routine.module)
        found[module["__name__"]] = module

    add(module)
    return list(found.values())


@cache
def _compiler() -> str:
    """What all native code depends on besides its module."""
    sources = (Path(str(part.__file__)).read_text("utf-8") for part in _COMPILER)
    return content_key(*sources, toolchain())


def _key(module: Module) -> str:
    """The cache key: the module's text, and the constants it has from elsewhere."""
    constants = sorted(
        f"{name}={value}"
        for name, value in module.items()
        if isinstance(value, (int, CFunction))
    )
    source = Path(module["__file__"]).read_text("utf-8")
    return content_key("native", source, "\n".join(constants), _compiler())


def _compilation(key: str, module: Module) -> Compilation:
    text = native_compiler.compile_module(module, target.host().triple)
    if module.get("LOOPS_OVER_DATA", False):
        return Compilation(
            key, partial(target.compile_vectorized, text, interleave=False)
        )
    return Compilation(key, partial(target.compile_quickly, text))
