"""The vocabulary's memory functions in Numba, for kernels that are left to it.

Importing this module registers them: typed for pointers of one element type, lowered to
the functions of ``kernel_memory``.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.core.imputils import builtin_registry as lowering_registry
from numba.core.typing import templates

from arrayfn.backends.cpu.kernel_interrupts import interrupted_function
from arrayfn.backends.cpu.kernel_memory import memory_function
from arrayfn.lowering.scalars.control import interrupted
from arrayfn.lowering.scalars.memory import MEMORY


def _register(name: str, function: Any) -> None:
    class Template(templates.AbstractTemplate):
        """Pointers of one element type, and integers."""

        key = function

        def generic(self, args: Any, kws: Any) -> Any:
            pointers = {a for a in args if isinstance(a, types.CPointer)}
            if kws or len(pointers) != 1:
                return None
            kinds = [a if a in pointers else types.int64 for a in args]
            return templates.signature(types.none, *kinds)

    templates.builtin_registry.register_global(function, types.Function(Template))

    @lowering_registry.lower(function, types.VarArg(types.Any))
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (element,) = {a.dtype for a in sig.args if isinstance(a, types.CPointer)}
        size = context.get_abi_sizeof(context.get_data_type(element))
        builder.call(memory_function(builder.module, name, size), args)
        return context.get_dummy_value()


class _Interrupted(templates.ConcreteTemplate):
    """Of an integer."""

    key = interrupted
    cases = (templates.signature(types.boolean, types.int64),)


templates.builtin_registry.register_global(interrupted, types.Function(_Interrupted))


@lowering_registry.lower(interrupted, types.int64)
def _lower_interrupted(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.call(interrupted_function(builder.module), args)


for _name, _function in MEMORY.items():
    _register(_name, _function)
