"""Lowered Programs in the disk cache, so that a saved function is lowered once.

An entry is a ``CompiledProgram`` without the arrays that its Program captures. It goes
by the content of the bundle and by all else that lowering follows from: arrayfn's
files, the machine's cores and vectors, and whether plans are verified. Like the
machine code beside it, it is what this user's own processes wrote (see
``object_cache``); bundles hold none.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn.backends.object_cache import content_key, object_cache
from arrayfn.ir import layout
from arrayfn.ir.types import ArrayType
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.cpu import machine
from arrayfn.records import frozen

Array = np.ndarray[Any, Any]
_LAYOUTS: Final = {"C": layout.C, "F": layout.F}
_ROOMS: Final = ("ir", "primitives", "transforms", "passes", "lowering", "compilation")


@frozen
class KeptPlan:
    """A plan in the disk cache: its captured arrays' types, and the lowered Program."""

    constant_types: tuple[ArrayType, ...]
    compiled: CompiledProgram


def plan_key(*parts: str) -> str:
    """Return the cache key of what this installation lowers from ``parts``.

    It depends on arrayfn's files, the machine, versions and whether plans are verified.
    Files count by their names, lengths and times, which takes a tenth of the time that
    reading them would take.
    """
    versions = sys.version, np.__version__, os.environ.get("ARRAYFN_VERIFY", "")
    key_parts = *parts, _installation(), *machine.properties(), *versions
    return content_key("plan", *key_parts)


@cache
def _installation() -> str:
    """Return a hash of arrayfn's files for lowering: of names, lengths and times."""
    package = Path(__file__).parents[1]
    files: list[str] = []
    for folder in (str(package / room) for room in _ROOMS):
        for place, _, names in os.walk(folder):
            for name in names:
                if name.endswith(".py"):
                    status = os.stat(f"{place}/{name}")
                    files.append(
                        f"{place}/{name} {status.st_size} {status.st_mtime_ns}"
                    )
    return content_key(*sorted(files))


def keep(key: str, kept: KeptPlan, captured: Sequence[Array]) -> None:
    """Store a plan in the disk cache under ``key``, without its ``captured`` arrays."""
    file = io.BytesIO()
    pickler = _Pickler(file, captured)
    pickler.dump(kept.constant_types)
    pickler.dump(kept.compiled)
    object_cache().put(key, file.getvalue())


def kept_plan(
    key: str, captured: Callable[[Sequence[ArrayType]], Sequence[Array]]
) -> KeptPlan | None:
    """Return the plan in the disk cache under ``key``, or None.

    ``captured`` returns the arrays that the Program captures, given their types.
    """
    entry = object_cache().get(key)
    if entry is None:
        return None
    unpickler = _Unpickler(io.BytesIO(entry))
    types: tuple[ArrayType, ...] = unpickler.load()
    unpickler.captured = captured(types)  # the plan refers to these arrays
    return KeptPlan(types, unpickler.load())


class _Pickler(pickle.Pickler):
    """Pickles a plan: captured arrays as their numbers, and layouts by name."""

    def __init__(self, file: io.BytesIO, captured: Sequence[Array]) -> None:
        super().__init__(file, protocol=5)
        self.numbers = {id(array): k for k, array in enumerate(captured)}

    @override
    def persistent_id(self, obj: Any) -> Any:
        """Return the name of a layout, or a captured array's number.

        Such objects are stored by this id only; None stores the object itself.
        """
        if obj is layout.C or obj is layout.F:
            return str(obj)
        if isinstance(obj, np.ndarray):
            number = self.numbers.get(id(obj))
            if number is not None:
                return number
        return None


class _Unpickler(pickle.Unpickler):
    """Unpickles what ``_Pickler`` writes, with only classes of arrayfn and NumPy.

    ``captured`` must be set to the captured arrays before the plan is loaded.
    """

    captured: Sequence[Array] = ()

    @override
    def persistent_load(self, pid: Any) -> Any:
        """Return the layout called ``pid``, or the captured array of this number."""
        return _LAYOUTS[pid] if isinstance(pid, str) else self.captured[pid]

    @override
    def find_class(self, module_name: str, global_name: str) -> Any:
        """Look up a class or function; UnpicklingError outside of these packages."""
        if module_name.partition(".")[0] not in ("arrayfn", "numpy", "ml_dtypes"):
            raise pickle.UnpicklingError(f"{module_name}.{global_name} is in no plan")
        return super().find_class(module_name, global_name)
