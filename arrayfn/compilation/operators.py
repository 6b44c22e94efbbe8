"""Operators: named pure functions, defined by their bodies, and kernels for them.

    @operator
    def softmax(x, axis=-1): ...  # arrayfn code: the reference, and what grad uses

    @softmax.kernel("cuda", when=last_axis)  # another implementation
    def softmax_rows(x, out): ...

Outside a trace an operator runs its body. Inside a trace it becomes an
``operator_call`` equation with the body's Program. Transformations apply to that
Program, and a backend may run a registered kernel in its place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from arrayfn import tree
from arrayfn.errors import ArgumentError, user_location
from arrayfn.lowering.operator_kernels import (
    KERNELS,
    VMAP_METHODS,
    Condition,
    Function,
    OperatorKernel,
    TakesView,
    VmapMethod,
    row_major_only,
)
from arrayfn.pickling import pickled
from arrayfn.primitives.calls import operator_call
from arrayfn.tracing import apply, device_of, is_staged
from arrayfn.transforms import name_of, trace_function
from arrayfn.transforms.custom import closed_over, with_inputs


class Operator:
    """A named operator; call it like the function it was made of."""

    def __init__(
        self, function: Function, name: str, static_argnames: frozenset[str]
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.static_argnames = static_argnames
        self._signature = inspect.signature(function)
        KERNELS.define(name)

    @property
    def kernels(self) -> tuple[OperatorKernel, ...]:
        """The registered kernels."""
        return tuple(KERNELS.of(self.name))

    def kernel(
        self,
        backend: str,
        *,
        when: Condition | None = None,
        prepared: bool = False,
        views: TakesView = row_major_only,
        lowered: bool = False,
        deterministic: bool = True,
        check: bool | float = True,
        vmap: VmapMethod | None = None,
    ) -> Callable[[Function], Function]:
        """A decorator that registers an implementation for ``backend``.

        It is used for operands that ``when(*types, **static)`` accepts; of several, the
        one registered last. It is called with the operands, then the arrays to write
        the results into, then the static arguments by name. For ``"cpu"`` these are
        NumPy arrays in the plan's memory: operands are read-only, and the kernel must
        not keep any array. For ``"cuda"`` they are DeviceArrays; the kernel may launch
        on any stream that waits for the default one. A kernel that is not
        ``deterministic`` is used only by ``jit(f, device="cuda",
        deterministic=False)``. See ``OperatorKernel`` for ``prepared`` and ``lowered``
        kernels, and for those that take ``views``. Jitted functions that call the
        operator are compiled again at their next call; results of ``lower`` and
        ``compile`` keep the kernels they have.

        The first call of each signature (types and static arguments) is compared with
        the operator's body, at the operands and at points near them, where a kernel
        with another derivative differs. ``KernelMismatchError`` says where. The
        tolerance is the square root of the results' machine epsilon, relative to the
        largest result; ``check`` may give another, and False turns the comparison off.
        Kernels that are ``lowered`` or captured into a CUDA graph are not compared.

        Derivatives use the body, with a ``DroppedKernelWarning``. So does ``vmap``,
        unless the kernel has a method for it: ``vmap="sequential"`` calls it for each
        member, ``vmap="expand_dims"`` once, on operands that have the mapped axis in
        front (of extent 1 where an operand is not mapped), as have the results.

        >>> import numpy as np
        >>> import arrayfn as af
        >>> @operator
        ... def tripled(x):
        ...     return x * 3
        >>> @tripled.kernel("cpu", when=lambda x: x.ndim == 1)
        ... def by_numpy(x, out):
        ...     np.multiply(x, 3, out=out)
        >>> af.jit(tripled)(np.arange(3.0))
        array([0., 3., 6.])
        """
        if vmap not in (None, *VMAP_METHODS):
            raise ArgumentError(
                f"kernel of {self.name}: vmap is one of {VMAP_METHODS} or None, not "
                f"{vmap!r}",
                user_location(),
            )

        def register(function: Function) -> Function:
            made = OperatorKernel(
                self.name,
                backend,
                function,
                when,
                prepared,
                views,
                lowered,
                deterministic,
                False if lowered else check,
                vmap,
            )
            KERNELS.register(made)
            return function

        return register

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function; one equation inside a trace."""
        dynamic, static = self._split(args, kwargs)
        # In the order of the parameters, as kernels take them.
        leaves, structure = tree.flatten(tuple(dynamic.values()))
        there = bool(device_of(leaves)) and not is_staged(leaves)
        if not (there or is_staged(leaves)):
            return self.function(*args, **kwargs)

        def body(*operands: Any) -> Any:
            values = tree.unflatten(structure, operands)
            named = dict(zip(dynamic, values, strict=True))
            return self.function(**named, **static)

        body.__name__ = self.name
        traced = trace_function(
            body, tuple(leaves), {}, abstract=there, with_values=not there
        )
        own = len(leaves)
        extra, (inner,) = closed_over([(traced, own)])
        results = apply(
            operator_call,
            *leaves,
            *extra,
            name=self.name,
            body=with_inputs(traced, (*traced.program.inputs[:own], *inner)),
            static=tuple(sorted(static.items())),
        )
        flat = results if isinstance(results, tuple) else (results,)
        return tree.unflatten(traced.out_tree, flat)

    def _split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments by name: operands and static ones."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{self.name}: {error}", user_location()) from None
        bound.apply_defaults()
        for key in self.static_argnames:
            try:
                hash(bound.arguments[key])
            except TypeError:
                raise ArgumentError(
                    f"{self.name}: static argument {key!r} is not hashable: "
                    f"{bound.arguments[key]!r}; give a tuple, or make it an operand",
                    user_location(),
                ) from None
        dynamic = {
            k: v for k, v in bound.arguments.items() if k not in self.static_argnames
        }
        static = {k: v for k, v in bound.arguments.items() if k in self.static_argnames}
        return dynamic, static

    def __reduce__(self) -> str | tuple[Any, ...]:
        state = {k: v for k, v in vars(self).items() if k != "_signature"}
        return pickled(self, state | {"kernels": self.kernels})

    def __setstate__(self, state: dict[str, Any]) -> None:
        kernels = state.pop("kernels")
        vars(self).update(state)
        self._signature = inspect.signature(self.function)
        if not self.kernels:
            for kernel in kernels:
                KERNELS.register(kernel)

    def __repr__(self) -> str:
        return f"<operator {self.name}>"


def operator(
    function: Function | None = None,
    *,
    name: str | None = None,
    static_argnames: Sequence[str] | None = None,
) -> Any:
    """Make ``function`` an operator, called ``name`` (by default as the function is).

    Its parameters without a default are operands: arrays, or pytrees of them. Those
    with a default are static: hashable Python values, one Program for each.
    ``static_argnames`` overrides this.

    >>> import numpy as np
    >>> @operator
    ... def scaled(x, factor=2.0):
    ...     return x * factor
    >>> scaled(np.arange(3.0))
    array([0., 2., 4.])
    """
    if function is None:
        return functools.partial(operator, name=name, static_argnames=static_argnames)
    parameters = inspect.signature(function).parameters
    variadic = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    for parameter in parameters.values():
        if parameter.kind in variadic | {inspect.Parameter.POSITIONAL_ONLY}:
            raise ArgumentError(
                f"an operator's parameters have names; {parameter} of "
                f"{name_of(function)} has none to call it by",
                user_location(),
            )
    if static_argnames is None:
        static = [k for k, p in parameters.items() if p.default is not p.empty]
    else:
        static = list(static_argnames)
    unknown = [k for k in static if k not in parameters]
    if unknown:
        raise ArgumentError(
            f"{name_of(function)} has no parameters {unknown} that could be static",
            user_location(),
        )
    return Operator(function, name or name_of(function), frozenset(static))
