"""Functions that Numba compiled, inside traced functions.

A call of an ``njit`` or ``vectorize`` function on traced values becomes an operator.
Its body is the function's Python source (``py_func``), traced: derivatives, maps and
GPUs use that. Its kernel for a CPU is the compiled function itself, compared with the
body at the first call. If the source cannot be traced (it branches on values, or writes
into arrays), the compiled function is called back, and derivatives need a rule.

Numba asks a traced value for its type (``_numba_type_``), which installs what is needed
here: nothing of Numba is imported before.
"""

from __future__ import annotations

import itertools
import re
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from functools import cache, update_wrapper
from inspect import Parameter, Signature
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn import dtypes, tree
from arrayfn.adapters.in_numba import type_of_compiled, type_of_jitted
from arrayfn.adapters.python_source import traceable
from arrayfn.callbacks import pure_callback
from arrayfn.compilation.operators import Operator
from arrayfn.errors import ArgumentError, ArrayfnError, ShapeError, user_location
from arrayfn.lowering.operator_kernels import KERNELS, OperatorKernel
from arrayfn.primitives.rules import as_list
from arrayfn.tracing import ImmutableArray, is_staged
from arrayfn.transforms import ShapeDtypeStruct, leaf_type
from arrayfn.transforms.custom import custom_vjp

Array = np.ndarray[Any, Any]
_NOT_TRACED: Final = (ArrayfnError, TypeError, ValueError, AttributeError, IndexError)
_names: dict[str, Any] = {}


class NumbaFunction:
    """A function that Numba compiled, which also takes traced values.

    ``result``, ``vjp`` and ``check`` are those of ``numba``. ``python`` is a traceable
    copy of its Python source function, or None if it has none. ``_operators`` has the
    operators that were made for its calls.
    """

    __name__: str

    def __init__(
        self,
        function: Any,
        result: Any = None,
        vjp: Callable[..., Any] | None = None,
        check: bool | float = True,
    ) -> None:
        """Copy the Python source of ``function``, and take its name and docstring."""
        self.function = function
        self.result = result
        self.vjp = vjp
        self.check = check
        self._operators: dict[Any, Operator[..., Any]] = {}
        python = _python_of(function)
        self.python: Callable[..., Any] | None = python and traceable(python)
        update_wrapper(self, python or function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled function; if arguments are traced, emit an operator.

        If the source cannot be traced, or ``result`` or ``vjp`` was given, the compiled
        function is called back when the traced program runs.
        """
        # Numba wraps the default values of omitted arguments.
        args = tuple(getattr(x, "value", x) if _is_omitted(x) else x for x in args)
        leaves, structure = tree.flatten((args, kwargs))
        if not is_staged(leaves):
            return _run(self.function, args, kwargs, ())
        array_positions = [k for k, x in enumerate(leaves) if _is_array(x)]
        call = _Call(self, leaves, structure, array_positions)
        operands = [leaves[k] for k in array_positions]
        if self.python is None or self.result is not None or self.vjp is not None:
            return call.call_back(operands, None)
        try:
            return call.operator()(*operands)
        except _NOT_TRACED as error:
            return call.call_back(operands, error)

    @override
    def __repr__(self) -> str:
        return f"<Numba function {self.__name__}>"

    def operator_for(self, key: Any, make: Callable[[], Operator[..., Any]]) -> Any:
        """Return the operator for calls that agree in ``key``, all but the arrays.

        ``make`` makes it at first use, or each time if the key cannot be hashed.
        """
        try:
            if key not in self._operators:
                self._operators[key] = make()
        except TypeError:  # an argument is not hashable
            return make()
        return self._operators[key]


class _Call:
    """One call of a NumbaFunction: its arguments as leaves, and which are arrays.

    Attributes:
        callee: the function that is called.
        others: the leaves that are no arrays, by position.
        count: the number of leaves.
        structure: the structure of ``(args, kwargs)``.
        array_positions: the positions of the arrays among the leaves.
    """

    def __init__(
        self,
        callee: NumbaFunction,
        leaves: Sequence[Any],
        structure: tree.TreeDef,
        array_positions: Sequence[int],
    ) -> None:
        self.callee = callee
        self.others = {k: x for k, x in enumerate(leaves) if k not in array_positions}
        self.count = len(leaves)
        self.structure = structure
        self.array_positions = tuple(array_positions)

    def arguments(self, operands: Sequence[Any]) -> tuple[Any, Any]:
        """Return ``(args, kwargs)`` of the call, with ``operands`` for the arrays."""
        values = {
            **self.others,
            **dict(zip(self.array_positions, operands, strict=True)),
        }
        flat = [values[k] for k in range(self.count)]
        return tree.unflatten(self.structure, flat)

    def operator(self) -> Operator[..., Any]:
        """Return the operator for this call, whose body is the Python source.

        Calls that differ only in their arrays share it.
        """
        # 1, 1.0 and True are equal as keys, so the key has the types as well.
        kinds = tuple((k, type(x), x) for k, x in self.others.items())
        key = self.structure, self.array_positions, kinds
        return self.callee.operator_for(key, self._make_operator)

    def _make_operator(self) -> Operator[..., Any]:
        """Make an operator of the call's arrays, and register its kernel for CPUs.

        The operator's body is the Python source, its kernel the compiled function.
        """
        python, count = self.callee.python, len(self.array_positions)
        assert python is not None

        def body(*operands: Any) -> Any:
            """Run the Python source on ``operands``, which are traced."""
            args, kwargs = self.arguments(operands)
            return python(*args, **kwargs)

        def kernel(*arrays: Any) -> None:
            """Run the compiled function, and copy its results to the last arrays."""
            args, kwargs = self.arguments([_as_numba(x) for x in arrays[:count]])
            values = _run(self.callee.function, args, kwargs, ())
            write(self.callee.__name__, tree.leaves(values), arrays[count:])

        name = _unique(self.callee.__name__)
        body.__name__ = kernel.__name__ = self.callee.__name__
        positional = Parameter.POSITIONAL_ONLY
        parameters = [Parameter(f"x{k}", positional) for k in range(count)]
        # The operator reads the number of its operands from the signature.
        vars(body)["__signature__"] = Signature(parameters)
        operator = Operator(body, name, frozenset())
        KERNELS.register(
            OperatorKernel(
                name, "cpu", kernel, check=self.callee.check, compiles_body=True
            )
        )
        return operator

    def call_back(self, operands: Sequence[Any], error: Exception | None) -> Any:
        """Emit a callback of the compiled function on the traced ``operands``.

        If the callee has a ``vjp``, it is the callback's derivative. ``error`` says why
        the Python source cannot be traced, if that was tried.
        """
        callee, name = self.callee, self.callee.__name__
        result_structs = self.result_of(operands, error)
        result_types = [
            ShapeDtypeStruct(t.shape, t.dtype) for t in tree.leaves(result_structs)
        ]

        def run(*arrays: Any) -> Any:
            """Run the compiled function on copies of the arrays."""
            args, kwargs = self.arguments([_as_numba(np.array(x)) for x in arrays])
            return _run(callee.function, args, kwargs, result_types)

        run.__name__ = name
        # A ufunc broadcasts over the axes that ``vmap`` adds; others are called for
        # each index.
        method = "expand_dims" if _is_ufunc(callee.function) else "sequential"

        def called(*arrays: Any) -> Any:
            """Emit the callback."""
            return pure_callback(run, result_structs, *arrays, vmap_method=method)

        if callee.vjp is None:
            return called(*operands)
        rule = callee.vjp

        def backward(residuals: tuple[Any, Any], cotangent: Any) -> tuple[Any, ...]:
            """Return the cotangents of the arrays, by the user's rule."""
            arrays, value = residuals
            return tuple(rule(*arrays, value, cotangent))

        def forward(*arrays: Any) -> tuple[Any, Any]:
            """Return the value, and the residuals for ``backward``."""
            value = called(*arrays)
            return value, (arrays, value)

        ruled = custom_vjp(called)
        ruled.defvjp(forward, backward)
        return ruled(*operands)

    def result_of(self, operands: Sequence[Any], error: Exception | None) -> Any:
        """Return the types of the call's results for ``operands``.

        The result is a ShapeDtypeStruct or a pytree of them. They are those that the
        user gave, or for a ufunc those of a call on empty arrays, or a number if Numba
        infers that. Otherwise ArgumentError is raised. ``error`` says why the function
        was not traced; it is None for a function that writes its results into its
        arguments.
        """
        callee = self.callee
        operand_types = [leaf_type(x) for x in operands]
        structs = [ShapeDtypeStruct(t.shape, t.dtype) for t in operand_types]
        if callable(callee.result):
            args, kwargs = self.arguments(structs)
            return callee.result(*args, **kwargs)
        if callee.result is not None:
            return callee.result
        result = None
        if _is_ufunc(callee.function):
            result = _ufunc_results(callee.function, self.arguments(structs)[0])
        elif hasattr(callee.function, "overloads"):
            result = self._scalar_result(structs)
        if result is not None:
            return result
        name = callee.__name__
        why = "its results are its arguments" if error is None else _reason(error)
        raise ArgumentError(
            f"{name}, which Numba compiled, cannot be traced: {why}. To call the "
            "compiled function as it stands, say what it returns: "
            f"arrayfn.adapters.numba({name}, result=lambda x: x) for an array like x, "
            "or a ShapeDtypeStruct of any shape",
            user_location(),
        ) from error

    def _scalar_result(self, structs: Sequence[ShapeDtypeStruct]) -> Any:
        """Return the result's type if Numba infers that it is a number, else None.

        Numba compiles the function for arguments like ``structs`` to infer it.
        """
        args, kwargs = self.arguments(
            [_as_numba(np.ones(x.shape, x.dtype)) for x in structs]
        )
        if kwargs:
            return None
        numba = sys.modules["numba"]
        signature = tuple(numba.typeof(x) for x in args)
        self.callee.function.compile(signature)
        inferred = self.callee.function.overloads[signature].signature.return_type
        if not isinstance(inferred, (numba.types.Number, numba.types.Boolean)):
            return None
        dtype = numba.np.numpy_support.as_dtype(inferred)
        return ShapeDtypeStruct((), dtypes.canonical(dtype))


def numba(
    function: Any,
    *,
    result: Any = None,
    vjp: Callable[..., Any] | None = None,
    check: bool | float = True,
) -> NumbaFunction:
    """Make a function that Numba compiled traceable.

    Args:
        function: a function of ``numba.njit``, ``numba.vectorize`` or
            ``numba.guvectorize``.
        result: the type of its result, if tracing its source cannot find the type. It
            is a ShapeDtypeStruct (or a pytree of them), or a function that returns this
            from the ShapeDtypeStructs of the arguments. With ``result`` the source is
            not traced.
        vjp: the rule for its derivative, ``vjp(*arrays, result, cotangent)``, which
            returns the cotangent of each array argument. With ``vjp`` the source is not
            traced.
        check: the tolerance of the comparison with the traced source, False for none.

    Returns:
        A function of the same arguments.

    Raises:
        ArgumentError: the function cannot be traced, and there is no ``result``; or a
            derivative is needed, and there is no ``vjp``.

    >>> import numba as nb
    >>> import arrayfn as af
    >>> @nb.njit
    ... def running_sum(x):
    ...     out = np.empty_like(x)
    ...     total = 0.0
    ...     for k in range(len(x)):
    ...         total += x[k]
    ...         out[k] = total
    ...     return out
    >>> def rule(x, result, cotangent):
    ...     return (cotangent[::-1].cumsum()[::-1],)
    >>> running = af.adapters.numba(running_sum, result=lambda x: x, vjp=rule)
    >>> af.jit(running)(np.ones(3))
    array([1., 2., 3.])
    >>> af.grad(lambda x: (running(x) * x).sum())(np.ones(3))
    array([4., 4., 4.])
    """
    if not _is_compiled(function):
        name = getattr(function, "__name__", repr(function))
        raise ArgumentError(
            f"adapters.numba takes a function that Numba compiled, not {name}; a "
            "kernel of numba.cuda.jit is registered by arrayfn.adapters.cuda_jit",
            user_location(),
        )
    return NumbaFunction(function, result, vjp, check)


def write(name: str, values: Sequence[Any], results: Sequence[Array]) -> None:
    """Copy the arrays ``values`` into the arrays ``results``.

    Raises ShapeError if their number or shapes differ; ``name`` is the function's, for
    the message.
    """
    shapes, result_shapes = [np.shape(x) for x in values], [x.shape for x in results]
    if shapes != result_shapes:
        raise ShapeError(
            f"{name}, compiled by Numba, returned arrays of shapes {shapes}; its "
            f"Python source returns {result_shapes}"
        )
    for result, value in zip(results, values, strict=True):
        result[...] = value


def _run(
    function: Any, args: Any, kwargs: Any, result_types: Sequence[ShapeDtypeStruct]
) -> Any:
    """Call ``function``, and return its results.

    ``result_types`` are the results' types: a guvectorize function that writes its
    results gets arrays of these.
    """
    if getattr(function, "is_dynamic", False) and hasattr(function, "gufunc_builder"):
        outs = [np.empty(type.shape, type.dtype) for type in result_types]
        function(*args, *outs, **kwargs)
        return outs[0] if len(outs) == 1 else tuple(outs)
    return function(*args, **kwargs)


def _as_numba(x: Array) -> Any:
    """Return ``x`` as Numba takes it: a number if it has no axes, else ``x``.

    The array ``x`` itself is made writable.
    """
    if not x.ndim:
        return x[()]
    # Numba has another type for read-only arrays, which few signatures take. It is safe
    # to make them writable: a function that was traced does not write into arrays, and
    # one that is called back gets copies.
    x.flags.writeable = True
    return x


def _is_array(x: Any) -> bool:
    """Return whether an argument is an array or a number of NumPy, or traced."""
    return isinstance(x, (ImmutableArray, np.ndarray, np.generic))


def _is_omitted(x: Any) -> bool:
    """Return whether ``x`` is Numba's wrapper of an omitted argument's default."""
    return type(x).__name__ == "OmittedArg"


def _is_ufunc(function: Any) -> bool:
    """Return whether ``function`` is a NumPy ufunc, or a Numba object around one."""
    return isinstance(function, np.ufunc) or hasattr(function, "ufunc")


def _is_compiled(function: Any) -> bool:
    """Return whether ``function`` is a ufunc or a callable of a Numba class."""
    is_of_numba = type(function).__module__.partition(".")[0] == "numba"
    return isinstance(function, np.ufunc) or (is_of_numba and callable(function))


def _python_of(function: Any) -> Any:
    """Return the Python function that ``function`` was compiled from, or None.

    It is None for a ``guvectorize`` function, whose source writes into its results, and
    for a ufunc that Numba did not compile.
    """
    if hasattr(function, "gufunc_builder"):
        return None
    if _is_ufunc(function):
        return getattr(getattr(function, "_dispatcher", None), "py_func", None)
    return getattr(function, "py_func", None)


def _ufunc_results(function: Any, operands: Sequence[Any]) -> Any:
    """Return the types of a ufunc's results for ``operands``, which are structs.

    The ufunc is called on empty arrays: their loop axes are replaced by one of extent
    0, and the axes of its signature stay. Returns None for a ``guvectorize`` function
    that allocates no results.
    """
    if getattr(function, "is_dynamic", False) and hasattr(function, "gufunc_builder"):
        return None
    structs = [x if hasattr(x, "shape") else np.asarray(x) for x in operands]
    signature = getattr(getattr(function, "ufunc", function), "signature", None)
    ndims = [0] * len(structs)  # each operand's axes in the signature, "(n),(n,m)->(m)"
    if signature:
        inputs = re.findall(r"\(([^)]*)\)", signature.partition("->")[0])
        ndims = [len([x for x in part.split(",") if x.strip()]) for part in inputs]
    loops = np.broadcast_shapes(
        *(x.shape[: len(x.shape) - n] for x, n in zip(structs, ndims, strict=True))
    )
    empty = [
        np.empty((0, *x.shape[len(x.shape) - n :]), x.dtype)
        for x, n in zip(structs, ndims, strict=True)
    ]
    results = function(*empty)
    result_structs = [
        ShapeDtypeStruct((*loops, *y.shape[1:]), y.dtype) for y in as_list(results)
    ]
    return tuple(result_structs) if isinstance(results, tuple) else result_structs[0]


def _unique(name: str) -> str:
    """Return and reserve an operator's name, such as "numba.f" or "numba.f_1".

    A number is appended if another operator has the name.
    """
    for number in itertools.count():
        candidate = f"numba.{name}" + (f"_{number}" if number else "")
        if candidate not in _names:
            _names[candidate] = None
            return candidate
    raise AssertionError


def _reason(error: Exception) -> str:
    """Return the first sentence of an error's message, and where it happened.

    The place, in parentheses, is known for errors of arrayfn only.
    """
    is_ours = isinstance(error, ArrayfnError)
    first = re.split(r"\. |\n", (error.message if is_ours else str(error)).strip())[0]
    return f"{first} ({error.location})" if is_ours and error.location else first


# Hooks that run when Numba gets a traced value as an argument.

_made: weakref.WeakKeyDictionary[Any, NumbaFunction] = weakref.WeakKeyDictionary()


def function_for(compiled: Any) -> NumbaFunction:
    """Return the NumbaFunction of ``compiled``, which is made once."""
    function = _made.get(compiled)
    if function is None:
        function = _made[compiled] = NumbaFunction(compiled)
    return function


def ufunc_for(ufunc: Any) -> NumbaFunction | None:
    """Return the NumbaFunction of a ufunc that Numba compiled; None for other ufuncs.

    A ``guvectorize`` function calls a NumPy ufunc of its own. It is found among the
    callers, by their frames.
    """
    if type(ufunc).__module__.startswith("numba."):
        return function_for(ufunc)
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "numba.np.ufunc.gufunc":
            owner = frame.f_locals.get("self")
            if getattr(owner, "ufunc", None) is ufunc:
                return function_for(owner)
        frame = frame.f_back
    return None


def type_of_traced() -> Any:
    """Return the Numba type of a traced value, which no function of Numba accepts.

    Numba's dispatchers are patched first: they then call a NumbaFunction when an
    argument has this type.

    Raises ArgumentError if a kernel of numba.cuda is called on a traced value: it has
    no result. If Numba's C code asks for the type in such a call, AttributeError is
    raised instead: Numba then asks again in Python code, which does not lose errors.
    """
    # The frame of the code that asks for the type; this function's caller is the
    # attribute of the traced value.
    asking = sys._getframe(2)
    frame: types.FrameType | None = asking
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("numba.cuda"):
            # Numba's Python code that asks is its module ``typeof``. In any other frame
            # C code asks, which has no frame of its own.
            if not str(asking.f_globals.get("__name__")).endswith(".typeof"):
                raise AttributeError("_numba_type_")
            raise ArgumentError(
                "a kernel of numba.cuda.jit writes into its arguments, and gets a "
                "traced value, which is immutable. Make it the kernel of an operator: "
                'operator.kernel("cuda")(arrayfn.adapters.cuda_jit(kernel, launch))',
                user_location(),
            )
        frame = frame.f_back
    return _type_after_patching()


@cache
def _type_after_patching() -> Any:
    """Return Numba's type of traced values; patch Numba's dispatchers for it first.

    This is done once. Numba's dispatchers then call the NumbaFunction when an argument
    is traced.
    """
    import numba
    from numba.core import dispatcher

    class TracedValue(numba.types.Type):
        """The Numba type of a traced value of arrayfn."""

        def __init__(self) -> None:
            super().__init__(name="traced value of arrayfn")

    base: Any = dispatcher._DispatcherBase
    compile_for_args = base._compile_for_args
    explain = base._explain_matching_error

    def compiled_for(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Replace ``_compile_for_args``: return the function that Numba calls next.

        For traced arguments that is the NumbaFunction of ``self``.
        """
        if _is_traced(args):
            return function_for(self)
        return compile_for_args(self, *args, **kwargs)

    def explained(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Replace ``_explain_matching_error``, to refuse traced arguments.

        Numba calls it for a function that declares all of its signatures.
        """
        if not _is_traced(args):
            return explain(self, *args, **kwargs)
        raise ArgumentError(
            f"{self.__name__} is compiled for the signatures that it declares, and so "
            "takes no traced value as it stands; call "
            f"arrayfn.adapters.numba({self.__name__}) in its place, or leave the "
            "signatures out",
            user_location(),
        )

    base._compile_for_args = compiled_for
    base._explain_matching_error = explained
    return TracedValue()


def _is_traced(args: Any) -> bool:
    """Return whether a leaf of the arguments ``args`` is a traced value or array."""
    return any(isinstance(x, ImmutableArray) for x in tree.leaves(args))


__all__ = ["NumbaFunction", "numba", "type_of_compiled", "type_of_jitted"]
