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
from arrayfn.tracing import ImmutableArray, is_staged
from arrayfn.transforms import ShapeDtypeStruct, leaf_type
from arrayfn.transforms.custom import custom_vjp

Array = np.ndarray[Any, Any]
_NOT_TRACED: Final = (ArrayfnError, TypeError, ValueError, AttributeError, IndexError)
_names: dict[str, Any] = {}


class NumbaFunction:
    """A function that Numba compiled, which takes traced values and arrays."""

    __name__: str

    def __init__(
        self,
        function: Any,
        result: Any = None,
        vjp: Callable[..., Any] | None = None,
        check: bool | float = True,
    ) -> None:
        self.function = function
        self.result = result
        self.vjp = vjp
        self.check = check
        self._operators: dict[Any, Operator[..., Any]] = {}
        python = _python_of(function)
        self.python: Callable[..., Any] | None = python and traceable(python)
        update_wrapper(self, python or function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The compiled function; an operator on traced values."""
        args = tuple(getattr(x, "value", x) if _is_omitted(x) else x for x in args)
        leaves, structure = tree.flatten((args, kwargs))
        if not is_staged(leaves):
            return _run(self.function, args, kwargs, ())
        places = [k for k, x in enumerate(leaves) if _is_array(x)]
        call = _Call(self, leaves, structure, places)
        operands = [leaves[k] for k in places]
        if self.python is None or self.result is not None or self.vjp is not None:
            return call.by_callback(operands, None)
        try:
            return call.operator()(*operands)
        except _NOT_TRACED as error:
            return call.by_callback(operands, error)

    @override
    def __repr__(self) -> str:
        return f"<Numba function {self.__name__}>"

    def operator_for(self, key: Any, made: Callable[[], Operator[..., Any]]) -> Any:
        """The operator for the arguments ``key`` that are not arrays, made once."""
        try:
            if key not in self._operators:
                self._operators[key] = made()
        except TypeError:  # an argument is not hashable
            return made()
        return self._operators[key]


class _Call:
    """One call: its leaves, and which of them are arrays.

    Attributes:
        whole: the function that is called.
        others: the leaves that are no arrays, by position.
        count: the number of leaves.
        structure: the structure of ``(args, kwargs)``.
        places: the positions of the arrays among the leaves.
    """

    def __init__(
        self,
        whole: NumbaFunction,
        leaves: Sequence[Any],
        structure: tree.TreeDef,
        places: Sequence[int],
    ) -> None:
        self.whole = whole
        self.others = {k: x for k, x in enumerate(leaves) if k not in places}
        self.count = len(leaves)
        self.structure = structure
        self.places = tuple(places)

    def arguments(self, operands: Sequence[Any]) -> tuple[Any, Any]:
        """The arguments with ``operands`` in the places of the arrays."""
        values = {**self.others, **dict(zip(self.places, operands, strict=True))}
        flat = [values[k] for k in range(self.count)]
        return tree.unflatten(self.structure, flat)

    def operator(self) -> Operator[..., Any]:
        """The operator whose body is the Python source."""
        # 1, 1.0 and True are equal as keys: their types tell them apart.
        kinds = tuple((k, type(x), x) for k, x in self.others.items())
        key = self.structure, self.places, kinds
        return self.whole.operator_for(key, self._made)

    def _made(self) -> Operator[..., Any]:
        """An operator of this call's arrays, whose kernel is the compiled function."""
        python, count = self.whole.python, len(self.places)
        assert python is not None

        def body(*operands: Any) -> Any:
            args, kwargs = self.arguments(operands)
            return python(*args, **kwargs)

        def kernel(*arrays: Any) -> None:
            """Run the compiled function, and copy what it gives to the last arrays."""
            args, kwargs = self.arguments([_as_numba(x) for x in arrays[:count]])
            given = _run(self.whole.function, args, kwargs, ())
            write(self.whole.__name__, tree.leaves(given), arrays[count:])

        name = _unique(self.whole.__name__)
        body.__name__ = kernel.__name__ = self.whole.__name__
        positional = Parameter.POSITIONAL_ONLY
        parameters = [Parameter(f"x{k}", positional) for k in range(count)]
        vars(body)["__signature__"] = Signature(parameters)
        made = Operator(body, name, frozenset())
        KERNELS.register(
            OperatorKernel(
                name, "cpu", kernel, check=self.whole.check, compiles_body=True
            )
        )
        return made

    def by_callback(self, operands: Sequence[Any], error: Exception | None) -> Any:
        """The compiled function called back on ``operands``, with its derivative.

        ``error`` says why its Python source cannot be traced, if there is one.
        """
        whole, name = self.whole, self.whole.__name__
        wanted = self.result_of(operands, error)
        forms = [ShapeDtypeStruct(t.shape, t.dtype) for t in tree.leaves(wanted)]

        def run(*arrays: Any) -> Any:
            args, kwargs = self.arguments([_as_numba(np.array(x)) for x in arrays])
            return _run(whole.function, args, kwargs, forms)

        run.__name__ = name
        method = "expand_dims" if _is_ufunc(whole.function) else "sequential"

        def called(*arrays: Any) -> Any:
            return pure_callback(run, wanted, *arrays, vmap_method=method)

        if whole.vjp is None:
            return called(*operands)
        rule = whole.vjp

        def backward(kept: tuple[Any, Any], cotangent: Any) -> tuple[Any, ...]:
            return tuple(rule(*kept[0], kept[1], cotangent))

        def forward(*arrays: Any) -> tuple[Any, Any]:
            value = called(*arrays)
            return value, (arrays, value)

        ruled = custom_vjp(called)
        ruled.defvjp(forward, backward)
        return ruled(*operands)

    def result_of(self, operands: Sequence[Any], error: Exception | None) -> Any:
        """What the results for ``operands`` are, as ShapeDtypeStructs.

        Raises ArgumentError if nothing tells; ``error`` says why the function was not
        traced.
        """
        whole = self.whole
        given = [leaf_type(x) for x in operands]
        structs = [ShapeDtypeStruct(t.shape, t.dtype) for t in given]
        if callable(whole.result):
            args, kwargs = self.arguments(structs)
            return whole.result(*args, **kwargs)
        if whole.result is not None:
            return whole.result
        found = None
        if _is_ufunc(whole.function):
            found = _ufunc_results(whole.function, self.arguments(structs)[0])
        elif hasattr(whole.function, "overloads"):
            found = self._scalar_result(structs)
        if found is not None:
            return found
        name = whole.__name__
        why = "its results are its arguments" if error is None else _reason(error)
        raise ArgumentError(
            f"{name}, which Numba compiled, cannot be traced: {why}. To call the "
            "compiled function as it stands, say what it returns: "
            f"arrayfn.adapters.numba({name}, result=lambda x: x) for an array like x, "
            "or a ShapeDtypeStruct of any shape",
            user_location(),
        ) from error

    def _scalar_result(self, structs: Sequence[ShapeDtypeStruct]) -> Any:
        """The result if Numba infers that it is a number; None if it is not."""
        args, kwargs = self.arguments(
            [_as_numba(np.ones(x.shape, x.dtype)) for x in structs]
        )
        if kwargs:
            return None
        numba = sys.modules["numba"]
        signature = tuple(numba.typeof(x) for x in args)
        self.whole.function.compile(signature)
        inferred = self.whole.function.overloads[signature].signature.return_type
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
    """Copy ``values`` into ``results``; ShapeError if they do not fit.

    ``name`` is the function's, for the message.
    """
    have, want = [np.shape(x) for x in values], [x.shape for x in results]
    if have != want:
        raise ShapeError(
            f"{name}, compiled by Numba, returned arrays of shapes {have}; its Python "
            f"source returns {want}"
        )
    for result, value in zip(results, values, strict=True):
        result[...] = value


def _run(
    function: Any, args: Any, kwargs: Any, forms: Sequence[ShapeDtypeStruct]
) -> Any:
    """Call ``function`` with ``args`` and ``kwargs``.

    A guvectorize function that asks for arrays of its results gets them, by ``forms``.
    """
    if getattr(function, "is_dynamic", False) and hasattr(function, "gufunc_builder"):
        outs = [np.empty(form.shape, form.dtype) for form in forms]
        function(*args, *outs, **kwargs)
        return outs[0] if len(outs) == 1 else tuple(outs)
    return function(*args, **kwargs)


def _as_numba(x: Array) -> Any:
    """The array ``x`` as Numba takes it: writable, or a number if it has no axes."""
    if not x.ndim:
        return x[()]
    # Numba has another type for read-only arrays, which few signatures take. What is
    # traced writes into none; what is not traced gets copies.
    x.flags.writeable = True
    return x


def _is_array(x: Any) -> bool:
    return isinstance(x, (ImmutableArray, np.ndarray, np.generic))


def _is_omitted(x: Any) -> bool:
    """Whether Numba passes ``x`` for an argument that has its default."""
    return type(x).__name__ == "OmittedArg"


def _is_ufunc(function: Any) -> bool:
    return isinstance(function, np.ufunc) or hasattr(function, "ufunc")


def _is_compiled(function: Any) -> bool:
    is_of_numba = type(function).__module__.partition(".")[0] == "numba"
    return isinstance(function, np.ufunc) or (is_of_numba and callable(function))


def _python_of(function: Any) -> Any:
    """The Python source of ``function``; None for one that writes its results."""
    if hasattr(function, "gufunc_builder"):
        return None
    if _is_ufunc(function):
        return getattr(getattr(function, "_dispatcher", None), "py_func", None)
    return getattr(function, "py_func", None)


def _ufunc_results(function: Any, operands: Sequence[Any]) -> Any:
    """The results of a ufunc on ``operands``, found by calling it on no elements.

    None if they cannot be found so.
    """
    if getattr(function, "is_dynamic", False) and hasattr(function, "gufunc_builder"):
        return None
    structs = [x if hasattr(x, "shape") else np.asarray(x) for x in operands]
    signature = getattr(getattr(function, "ufunc", function), "signature", None)
    ndims = [0] * len(structs)
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
    given = function(*empty)
    made = [
        ShapeDtypeStruct((*loops, *y.shape[1:]), y.dtype)
        for y in (given if isinstance(given, tuple) else (given,))
    ]
    return tuple(made) if isinstance(given, tuple) else made[0]


def _unique(name: str) -> str:
    """An operator's name, which no other function has."""
    for number in itertools.count():
        found = f"numba.{name}" + (f"_{number}" if number else "")
        if found not in _names:
            _names[found] = None
            return found
    raise AssertionError


def _reason(error: Exception) -> str:
    """The first sentence of an error, without the line that it names."""
    is_ours = isinstance(error, ArrayfnError)
    first = re.split(r"\. |\n", (error.message if is_ours else str(error)).strip())[0]
    return f"{first} ({error.location})" if is_ours and error.location else first


# What Numba meets when a traced value is among the arguments.

_made: weakref.WeakKeyDictionary[Any, NumbaFunction] = weakref.WeakKeyDictionary()


def function_for(compiled: Any) -> NumbaFunction:
    """The function that a call of ``compiled`` on traced values runs."""
    made = _made.get(compiled)
    if made is None:
        made = _made[compiled] = NumbaFunction(compiled)
    return made


def ufunc_for(ufunc: Any) -> NumbaFunction | None:
    """The function of a ufunc that Numba made; None of any other ufunc."""
    if type(ufunc).__module__.startswith("numba."):
        return function_for(ufunc)
    # What is called is a NumPy ufunc inside a guvectorize function.
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "numba.np.ufunc.gufunc":
            owner = frame.f_locals.get("self")
            if getattr(owner, "ufunc", None) is ufunc:
                return function_for(owner)
        frame = frame.f_back
    return None


def type_of_traced() -> Any:
    """Numba's type of a traced value, which none of its functions takes.

    Before it gives the type, the calls of compiled functions are prepared. A kernel of
    numba.cuda, which gives no value, is refused.

    Raises ArgumentError for such a kernel, and AttributeError where Numba's C code asks
    whether there is a type: it then asks again in Python, where errors are not lost.
    """
    asking = sys._getframe(2)
    frame: types.FrameType | None = asking
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("numba.cuda"):
            if not str(asking.f_globals.get("__name__")).endswith(".typeof"):
                raise AttributeError("_numba_type_")
            raise ArgumentError(
                "a kernel of numba.cuda.jit writes into its arguments, and gets a "
                "traced value, which is immutable. Make it the kernel of an operator: "
                'operator.kernel("cuda")(arrayfn.adapters.cuda_jit(kernel, launch))',
                user_location(),
            )
        frame = frame.f_back
    return _prepared()


@cache
def _prepared() -> Any:
    """Numba's type of traced values, with their calls prepared."""
    import numba
    from numba.core import dispatcher

    class TracedValue(numba.types.Type):
        """A traced value of arrayfn."""

        def __init__(self) -> None:
            super().__init__(name="traced value of arrayfn")

    base: Any = dispatcher._DispatcherBase
    compile_for_args = base._compile_for_args
    explain = base._explain_matching_error

    def compiled_for(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Numba's method; what it returns is called with the arguments."""
        if _is_traced(args):
            return function_for(self)
        return compile_for_args(self, *args, **kwargs)

    def explained(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Numba's method for a function that has declared all of its signatures."""
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
    return any(isinstance(x, ImmutableArray) for x in tree.leaves(args))


__all__ = ["NumbaFunction", "numba", "type_of_compiled", "type_of_jitted"]
