"""Operators: named pure functions, defined by their bodies, and kernels for them.

    @operator
    def softmax(x, axis=-1): ...  # arrayfn code: the reference, and what grad uses

    @softmax.kernel("cuda", when=last_axis)  # another implementation
    def softmax_rows(x, out): ...

Outside a trace an operator runs its body. Inside a trace it becomes an
``operator_call`` equation with the body's Program. Transformations apply to that
Program, and a backend may run a registered kernel in its place. An operator that is
``inline`` becomes an equation only while a kernel is registered for it; without one its
body is traced as that of any function is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, ParamSpec, TypeVar, overload

import numpy as np
from typing_extensions import override

from arrayfn import tree
from arrayfn.backends.registry import get_backend
from arrayfn.errors import ArgumentError, user_location
from arrayfn.lowering.operator_kernels import (
    KERNELS,
    VMAP_METHODS,
    Condition,
    Function,
    OperatorKernel,
    TakesView,
    VmapMethod,
    body_name,
    row_major_only,
)
from arrayfn.pickling import pickled
from arrayfn.primitives.calls import operator_call
from arrayfn.primitives.rules import as_list
from arrayfn.records import record
from arrayfn.tracing import apply, device_of, is_staged
from arrayfn.tracing.frames import current_frame
from arrayfn.transforms import name_of, shown_name, trace_function
from arrayfn.transforms.custom import closed_over, with_inputs

P = ParamSpec("P")
R = TypeVar("R")


class Operator(Generic[P, R]):
    """A named operator: call it like the function it was made from.

    Attributes:
        function: the function that it was made from, which is the operator's body.
        name: the name under which its kernels are registered.
        static_argnames: the parameters that are static.
        inline: whether the operator becomes an equation only while it has a kernel.
        parts: the operators that the body calls, for ``kernels`` to list.
        shardable: whether a kernel may compute one device's parts of cut operands.
    """

    def __init__(
        self,
        function: Callable[P, R],
        name: str,
        static_argnames: frozenset[str],
        inline: bool = False,
        parts: tuple[str, ...] = (),
        shardable: bool = False,
    ) -> None:
        """Take the function's name and docstring, and define the operator's name."""
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.static_argnames = static_argnames
        self.inline = inline
        self.parts = parts
        self.shardable = shardable
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
        replaces: OperatorKernel | str | None = None,
    ) -> Callable[[Function], Function]:
        """Return a decorator that registers an implementation for ``backend``.

        The kernel is used for operands that ``when(*types, **static)`` accepts. If
        several kernels accept the operands, the one that was registered last is used.
        Its arguments are the operands, then the arrays to write the results into, then
        the static arguments by name. For ``"cpu"`` the arrays are NumPy arrays in the
        plan's memory. Operands are read-only, and the kernel must not keep any array.
        For ``"cuda"`` the arrays are DeviceArrays, and the kernel may launch on any
        stream that waits for the default one. A kernel that is not ``deterministic`` is
        used only by ``jit(f, device="cuda", deterministic=False)``. A ``prepared``
        kernel is called once, when a plan is loaded, with types in place of arrays. It
        returns the function to call. The compiler calls a ``lowered`` kernel with the
        equation, and the kernel returns generated kernels with their calls. ``views``
        says which views of an array the kernel takes without a copy. Jitted functions
        that call the operator are compiled again at their next call. Results of
        ``lower`` and ``compile`` keep the kernels they have.

        At the first call with each signature (types and static arguments), arrayfn
        compares the kernel with the operator's body, at the operands and at points near
        them. The points near them show a kernel with a wrong derivative. If the results
        differ, ``KernelMismatchError`` says where. The tolerance is the square root of
        the results' machine epsilon, relative to the largest result. ``check`` sets
        another tolerance, and ``check=False`` turns the comparison off. Kernels that
        are ``lowered`` or captured into a CUDA graph are not compared. If ``replaces``
        names a kernel, the new kernel takes its place.

        Derivatives use the body, with a ``DroppedKernelWarning``. ``vmap`` also uses
        the body, unless you pass a method. ``vmap="sequential"`` calls the kernel for
        each member. ``vmap="expand_dims"`` calls it once, with the mapped axis as the
        first axis of operands and results. This axis has extent 1 if an operand is not
        mapped.

        Raises BackendError if there is no such backend.

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
        get_backend(backend)  # an error if there is none of that name
        if vmap not in (None, *VMAP_METHODS):
            raise ArgumentError(
                f"kernel of {self.name}: vmap must be one of {VMAP_METHODS} or None, "
                f"not {vmap!r}",
                user_location(),
            )

        def register(function: Function) -> Function:
            """Register ``function`` as a kernel of the operator."""
            registered_kernel = OperatorKernel(
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
            if replaces is None:
                KERNELS.register(registered_kernel)
            else:
                KERNELS.replace(self.find_kernel(replaces, backend), registered_kernel)
            return function

        return register

    def prefer(self, kernel: OperatorKernel | str, backend: str | None = None) -> None:
        """Try ``kernel`` before the other kernels of its backend.

        ``kernel`` is one of ``kernels``, or its name. Anything else raises
        ArgumentError.
        """
        KERNELS.prefer(self.find_kernel(kernel, backend))

    def remove(self, kernel: OperatorKernel | str, backend: str | None = None) -> None:
        """Remove ``kernel``: one of ``kernels``, or the name of one for ``backend``.

        If no other kernel applies, the body computes the operator again. Raises
        ArgumentError for a kernel that is not registered.
        """
        KERNELS.remove(self.find_kernel(kernel, backend))

    def find_kernel(
        self, kernel: OperatorKernel | str, backend: str | None = None
    ) -> OperatorKernel:
        """Find the registered kernel of this name, for ``backend`` or for the only one.

        Raises ArgumentError if there is none, or if several backends have one.
        """
        matches = [
            known
            for known in self.kernels
            if kernel in (known, known.title) and backend in (None, known.backend)
        ]
        if len(matches) == 1:
            return matches[0]
        title = kernel if isinstance(kernel, str) else kernel.title
        available = [f"{known.title} for {known.backend}" for known in self.kernels]
        raise ArgumentError(
            f"operator {self.name} has {len(matches) or 'no'} kernels {title!r}"
            f"{f' for {backend}' if backend else ''}; there are "
            f"{', '.join(available) or 'none'}. Name the backend, or pass one of "
            ".kernels",
            user_location(),
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function; inside a trace, emit one ``operator_call``."""
        if self.inline:
            frame = current_frame()
            if frame is not None:
                frame.inlined.add(self.name)
            if not KERNELS.has(self.name):
                return self.function(*args, **kwargs)
        return self._as_equation(args, kwargs)

    def _as_equation(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Emit one ``operator_call`` with the body's Program; outside a trace, run it.

        Operands on a device run as in a trace, since a kernel may compute the call
        there.
        """
        call = self.split(args, kwargs)
        # In the order of the parameters, as kernels take them.
        leaves, structure = tree.flatten(tuple(call.operands.values()))
        on_device = bool(device_of(leaves)) and not is_staged(leaves)
        if not (on_device or is_staged(leaves)) or call.only_body:
            return self.function(*args, **kwargs)

        def body(*operands: Any) -> Any:
            """Return the operator's results for the leaves of its operands."""
            values = tree.unflatten(structure, operands)
            named = dict(zip(call.operands, values, strict=True))
            return call.function(named)

        body.__name__ = body_name(self.name)
        traced = trace_function(
            body, tuple(leaves), {}, abstract=on_device, with_values=not on_device
        )
        count = len(leaves)
        # The outer values that the body reads, and its inputs that stand for them.
        captured, (captured_inputs,) = closed_over([(traced, count)])
        absent = call.absent()
        results = apply(
            operator_call,
            *leaves,
            *captured,
            name=self.name,
            body=with_inputs(
                traced, (*traced.program.inputs[:count], *captured_inputs)
            ),
            static=tuple(sorted(call.static.items())),
            **({"absent": absent} if absent else {}),
            **({"shardable": True} if self.shardable else {}),
        )
        return tree.unflatten(traced.out_tree, as_list(results))

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Sort the arguments of a call into operands and static arguments.

        Raises ArgumentError if the arguments do not fit the signature, or if a static
        argument is not hashable. A call of an ``inline`` operator then runs its body
        instead. The body also runs if a static argument is not a constant but, for
        example, a function.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{self.name}: {error}", user_location()) from None
        bound.apply_defaults()
        # Parameters of other libraries' functions that the body takes and ignores.
        hints: frozenset[str] = getattr(self.function, "hints", frozenset())
        arguments = Arguments(self.function, bound, {}, {})
        for key, value in bound.arguments.items():
            if key not in self.static_argnames:
                arguments.operands[key] = value
            elif key not in hints:  # kernels do not get hints
                is_list = self.inline and isinstance(value, list)
                arguments.static[key] = tuple(value) if is_list else value
        for key, value in arguments.static.items():
            if self.inline:
                arguments.only_body |= not _is_constant(value)
            elif not _is_hashable(value):
                raise ArgumentError(
                    f"{self.name}: static argument {key!r} is not hashable: "
                    f"{value!r}; give a tuple, or make it an operand",
                    user_location(),
                )
        return arguments

    @override
    def __reduce__(self) -> str | tuple[Any, ...]:
        state = {k: v for k, v in vars(self).items() if k != "_signature"}
        return pickled(self, state | {"kernels": self.kernels})

    def __setstate__(self, state: dict[str, Any]) -> None:
        kernels = state.pop("kernels")
        vars(self).update(state)
        self._signature = inspect.signature(self.function)
        # If this process has kernels under the operator's name, keep those.
        if not self.kernels:
            for kernel in kernels:
                KERNELS.register(kernel)

    @override
    def __repr__(self) -> str:
        return f"<operator {self.name}>"


@record
class Arguments:
    """The arguments of one call of an operator.

    Attributes:
        called: the operator's function.
        bound: all arguments by parameter, with defaults.
        operands: the operands by parameter, pytrees of arrays or None.
        static: the static arguments by parameter.
        only_body: whether an argument cannot be given to a kernel.
    """

    called: Function
    bound: inspect.BoundArguments
    operands: dict[str, Any]
    static: dict[str, Any]
    only_body: bool = False

    def function(self, operands: dict[str, Any]) -> Any:
        """Call the operator's function on other ``operands``, same static arguments."""
        self.bound.arguments.update(operands)
        return self.called(*self.bound.args, **self.bound.kwargs)

    def absent(self) -> tuple[int, ...]:
        """Return the positions, among the operands' leaves, of operands that are None.

        An operand of None counts as one leaf.
        """
        places: list[int] = []
        count = 0
        for value in self.operands.values():
            if value is None:
                places.append(count)
            count += 1 if value is None else len(tree.leaves(value))
        return tuple(places)


_CONSTANTS: Final = (type(None), bool, int, float, complex, str, type, np.generic)


def _is_constant(value: Any) -> bool:
    """Whether ``value`` is a number, text or dtype, or a tuple of them."""
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return isinstance(value, (*_CONSTANTS, np.dtype))


def _is_hashable(value: Any) -> bool:
    """Whether ``value`` can be part of a cache key."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


@overload
def operator(
    function: Callable[P, R],
    *,
    name: str | None = None,
    static_argnames: Sequence[str] | None = None,
    inline: bool = False,
    parts: Sequence[str] = (),
    shardable: bool = False,
) -> Operator[P, R]: ...


@overload
def operator(
    function: None = None,
    *,
    name: str | None = None,
    static_argnames: Sequence[str] | None = None,
    inline: bool = False,
    parts: Sequence[str] = (),
    shardable: bool = False,
) -> Callable[[Callable[P, R]], Operator[P, R]]: ...


def operator(
    function: Function | None = None,
    *,
    name: str | None = None,
    static_argnames: Sequence[str] | None = None,
    inline: bool = False,
    parts: Sequence[str] = (),
    shardable: bool = False,
) -> Any:
    """Make ``function`` an operator, named ``name`` (by default like the function).

    Its parameters without a default are operands: arrays, or pytrees of them.
    Parameters with a default are static. They are hashable Python values, and each
    value has a separate Program. ``static_argnames`` overrides this. An operand may be
    None, which stands for an operand that is not given.

    With ``inline`` the operator is one equation only while it has a kernel. Without a
    kernel, its body is traced like any function, and fused with the code around it.
    ``parts`` names operators that the body calls, for ``kernels`` to list.

    Over a mesh of devices, kernels compute only calls whose operands are whole on every
    device. If the operator is ``shardable``, kernels also compute one device's parts of
    operands that are cut. The body must then treat parts independently: it must not
    reduce along a cut axis or use the extent of that axis as a number.

    >>> import numpy as np
    >>> @operator
    ... def scaled(x, factor=2.0):
    ...     return x * factor
    >>> scaled(np.arange(3.0))
    array([0., 2., 4.])
    """
    if function is None:
        return functools.partial(
            operator,
            name=name,
            static_argnames=static_argnames,
            inline=inline,
            parts=parts,
            shardable=shardable,
        )
    parameters = inspect.signature(function).parameters
    variadic = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    for parameter in parameters.values():
        if parameter.kind in variadic:
            raise ArgumentError(
                f"an operator's parameters have names; {parameter} of "
                f"{shown_name(function)} has none to call it by",
                user_location(),
            )
    if static_argnames is None:
        static = [k for k, p in parameters.items() if p.default is not p.empty]
    else:
        static = list(static_argnames)
    unknown = [k for k in static if k not in parameters]
    if unknown:
        raise ArgumentError(
            f"{shown_name(function)} has no parameters {unknown} that could be static",
            user_location(),
        )
    chosen = name or name_of(function)
    return Operator(
        function, chosen, frozenset(static), inline, tuple(parts), shardable
    )
