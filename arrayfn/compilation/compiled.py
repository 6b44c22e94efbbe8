"""Compiled: a function compiled for one signature, and the errors of its checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
from typing_extensions import override

from arrayfn import tree
from arrayfn.array_likes import adopted
from arrayfn.backends.base import Backend, Executable
from arrayfn.compilation.watching import WATCHERS
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import ArrayType
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.passes.faults import NO_FAULT, Site, fault_error, value_count
from arrayfn.records import frozen
from arrayfn.tracing import ImmutableArray, Namespace
from arrayfn.transforms import leaf_type

if TYPE_CHECKING:
    from arrayfn.compilation.costs import Memory

OF_THIS_PROCESS: Final = (
    "what is lowered or compiled belongs to this process and cannot be pickled; pickle "
    "the jitted function, or write a bundle with arrayfn.save"
)


@frozen(repr=False)
class Compiled:
    """A function compiled for one signature: call it like the function.

    >>> import arrayfn as af
    >>> compiled = af.jit(lambda x: x + 1.0).lower(1.0).compile()
    >>> isinstance(compiled, af.Compiled), compiled(2.0)
    (True, array(3.))

    Attributes:
        compiled: the plan and the kernels.
        run: the executable, a function of a tuple of arrays.
        in_tree: the structure of ``(args, kwargs)``, without static arguments.
        out_tree: the structure of the results.
        backend: the backend that runs the function.
        sites: the sites of its checks.
        began: the time at which its compilation began, by ``time.perf_counter``; 0 if
            not known.
        seconds: the duration of its compilation; 0 if not known.
    """

    compiled: CompiledProgram
    run: Callable[..., Any]
    in_tree: tree.TreeDef
    out_tree: tree.TreeDef
    backend: Backend
    sites: tuple[Site, ...] = ()
    began: float = 0.0
    seconds: float = 0.0

    @override
    def __reduce__(self) -> NoReturn:
        raise TypeError(OF_THIS_PROCESS)

    @override
    def __repr__(self) -> str:
        return f"<Compiled {signature(self.compiled)} for {self.compiled.target}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on its dynamic arguments (static ones are left out)."""
        leaves, structure = tree.flatten((args, kwargs))
        check_structure(structure, self.in_tree)
        leaves = [adopted(x) for x in leaves]
        types = [leaf_type(x) for x in leaves]
        self.check(types)
        return self.on_leaves(leaves, types)

    def cost_analysis(self) -> dict[str, float]:
        """Return the arithmetic operations of a call and the bytes that it moves.

        ``jit(f).lower(...).cost()`` has them for each step.

        >>> import arrayfn as af
        >>> af.jit(lambda x: x * x + x).lower(np.ones(8)).compile().cost_analysis()
        {'flops': 16.0, 'bytes accessed': 128.0}
        """
        from arrayfn.compilation.costs import cost_of

        cost = cost_of(self.compiled.plan)
        return {"flops": float(cost.operations), "bytes accessed": float(cost.bytes)}

    def memory_analysis(self) -> Memory:
        """Return the bytes of arguments, results, constants and temporaries.

        >>> import arrayfn as af
        >>> compiled = af.jit(lambda x: x + 1.0).lower(np.ones(128)).compile()
        >>> print(compiled.memory_analysis())
        inputs 1 KiB, outputs 1 KiB, constants 0 B, temporaries 0 B
        """
        from arrayfn.compilation.costs import memory_of

        return memory_of(self.compiled.plan)

    @property
    def _numba_type_(self) -> Any:
        """What Numba asks for when a function that it compiles calls this one."""
        return import_module(Namespace.numba_module).type_of_compiled(self)

    def check(self, types: Sequence[ArrayType]) -> None:
        """Raise ArgumentError unless arguments of ``types`` fit."""
        pairs = zip(types, self.compiled.input_types, strict=True)
        for number, (actual, wanted) in enumerate(pairs):
            if (actual.shape, actual.dtype) != (wanted.shape, wanted.dtype):
                # The structure is that of (args, kwargs).
                _, argument, *rest = self.in_tree.accessors()[number]
                path = "".join(entry.codify("") for entry in rest)
                raise ArgumentError(
                    f"argument {argument.entry}{path} must be {wanted}, not {actual}: "
                    "this was compiled for one signature; the jitted function takes "
                    "any",
                    user_location(),
                )

    def on_leaves(self, leaves: Sequence[Any], types: Sequence[ArrayType]) -> Any:
        """Call with leaves of the right ``types``; only their layouts may differ."""
        wanted = self.compiled.input_types
        arrays = tuple(
            _as_array(x, actual, want)
            for x, actual, want in zip(leaves, types, wanted, strict=True)
        )
        results = WATCHERS[-1](self, arrays) if WATCHERS else self.run(arrays)
        return tree.unflatten(self.out_tree, list(results))


def check_structure(actual: tree.TreeDef, wanted: tree.TreeDef) -> None:
    """Raise ArgumentError unless arguments have the structure that is ``wanted``."""
    if actual != wanted:
        raise ArgumentError(
            f"this was compiled for arguments of structure {tree.text_of(wanted)}, not "
            f"{tree.text_of(actual)}",
            user_location(),
        )


def _as_array(leaf: Any, have: ArrayType, wanted: ArrayType) -> Any:
    """Convert ``leaf``, of the type ``have``, to an array in the layout of ``wanted``.

    An array on a device stays as it is: its backend copies.
    """
    if isinstance(leaf, ImmutableArray):
        return leaf
    array = np.asarray(leaf)
    return array if have.layout == wanted.layout else laid_out(array, wanted)


def laid_out(array: np.ndarray[Any, Any], type: ArrayType) -> np.ndarray[Any, Any]:
    """Copy ``array`` to memory with the strides of ``type``, gaps included."""
    # In elements: the lowest one's distance from the first, <= 0, and the whole length.
    lowest, extent = type.span()
    size = type.dtype.itemsize
    strides = [stride * size for stride in type.layout.strides(type.shape)]
    memory = np.empty(extent, type.dtype)
    copy = np.ndarray(type.shape, type.dtype, memory, -lowest * size, strides)
    copy[...] = array
    return copy


def with_faults(run: Executable, sites: tuple[Site, ...]) -> Executable:
    """Wrap ``run`` to raise the error of a check that failed.

    With ``sites`` of checks, ``run`` returns the values of the checks and a fault (see
    ``passes.faults``) after the function's results. Without, it is returned as it is.
    """
    if not sites:
        return run
    value_total = value_count(sites)

    def checked(arrays: tuple[Any, ...]) -> Sequence[Any]:
        """Return the function's results, or raise the error of a fault.

        After the results, ``run`` returns ``value_total`` values of the checks, for the
        error's text, and the fault.
        """
        *results, fault = run(arrays)
        result_count = len(results) - value_total
        if int(fault) != NO_FAULT:
            raise fault_error(sites, int(fault), results[result_count:])
        return results[:result_count]

    return checked


def signature(compiled: CompiledProgram) -> str:
    """Return the name and types of ``compiled``: ``f(f32[3]) -> (f32[])``."""
    arguments = ", ".join(map(str, compiled.input_types))
    results = ", ".join(map(str, compiled.output_types))
    return f"{compiled.name}({arguments}) -> ({results})"
