"""Compiled functions of arrayfn, called in functions that Numba compiles.

``step = f.lower(x).compile()`` is called natively: the machine code of the njit
function passes the arrays' addresses to the plan. A jitted function, which takes arrays
of any shape, is called through the interpreter (Numba's object mode).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from arrayfn import tree
from arrayfn.backends.cpu.address_entry import run_at
from arrayfn.backends.cpu.executable import Executable
from arrayfn.backends.native.code import native_address
from arrayfn.errors import ArgumentError, ArrayfnError, user_location
from arrayfn.ir import ArrayType
from arrayfn.ir.layout import C
from arrayfn.transforms import ShapeDtypeStruct, eval_shape

_EXTENT: Final = 4  # assumed for each axis of an array: Numba's types have no extents
Key = tuple[int, ...]
_known: dict[Key, tuple[Any, Any]] = {}
"""By key: arrayfn's function, and the njit function that calls it."""


def type_of_compiled(compiled: Any) -> Any:
    """Return the Numba type of a function that arrayfn compiled for one signature."""
    return _numba_type_of((id(compiled),), compiled, _native_call)


def type_of_jitted(jitted: Any) -> Any:
    """Return the Numba type of a jitted function of arrayfn."""
    # Numba remembers if it could not type a call. A signature that was compiled since
    # then may say what the results are: so the number of signatures is in the key.
    return _numba_type_of(
        (id(jitted), len(jitted.compiled_signatures())), jitted, _object_call
    )


def _numba_type_of(key: Key, function: Any, make: Callable[[Any], Any]) -> Any:
    """Return the Numba type of the njit function ``make(function)``.

    The njit function is made once for ``key``. Both functions stay alive: machine code
    may call the njit function, and ``key`` has the address of ``function``, which must
    not become that of another object.
    """
    if key not in _known:
        _known[key] = function, make(function)
    _, njit_function = _known[key]
    return njit_function._numba_type_


def _native_call(compiled: Any) -> Any:
    """Make an njit function that runs the plan of ``compiled`` natively.

    Raises ArgumentError if the plan cannot be run so: it is not for the CPU, checks its
    arguments, donates some, or calls Python.
    """
    from numba import njit
    from numba.extending import overload

    name, run = compiled.compiled.name, compiled.run
    inputs, outputs = compiled.compiled.input_types, compiled.compiled.output_types
    if not isinstance(run, Executable) or not run.address:
        raise ArgumentError(
            f"{name} cannot be called from a function of Numba: it is compiled for "
            f"{compiled.compiled.target}, with checks or donated arguments, or calls "
            "Python; call the jitted function, in its place",
            user_location(),
        )
    _check_signature(name, compiled, inputs, outputs)
    names = [f"x{k}" for k in range(len(inputs))]
    scope: dict[str, Any] = {
        "np": np,
        "run": _runner(),
        "image": run.address,
        **{
            f"dtype_{k}": _numba_type(name, t)
            for k, t in enumerate((*inputs, *outputs))
        },
    }
    implementation = _executed("\n".join(_native_lines(name, inputs, outputs)), scope)

    def choose(*arguments: Any) -> Any:
        """Return the implementation if it takes arguments of these Numba types."""
        _check_types(name, inputs, arguments)
        return implementation

    # Numba requires that the called function, the function that chooses by types, and
    # the implementation have the same parameters.
    called = ", ".join(names)
    stub = _executed(f"def call({called}): ...", {})
    typed = f"def call({called}): return choose({called})"
    overload(stub)(_executed(typed, {"choose": choose}))
    whole = f"def call({called}):\n    return stub({called})"
    return njit(_executed(whole, {"stub": stub}))


def _check_signature(
    name: str,
    compiled: Any,
    inputs: Sequence[ArrayType],
    outputs: Sequence[ArrayType],
) -> None:
    """Raise ArgumentError unless Numba's functions can pass and take the arrays.

    Arguments must be positional, results one array or a tuple, and all arrays in C
    order. ``name`` is the function's, for messages; ``compiled`` its compiled form.
    """
    count = len(inputs)
    is_flat = compiled.in_tree == tree.structure(((0,) * count, {}))
    is_plain = compiled.out_tree in (
        tree.structure(0),
        tree.structure((0,) * len(outputs)),
    )
    if not (is_flat and is_plain):
        raise ArgumentError(
            f"{name} is called from a function of Numba with positional arrays and "
            "numbers, and returns one or a tuple of them; this one takes or returns "
            "other containers",
            user_location(),
        )
    for type in (*inputs, *outputs):
        if type.layout != C:
            raise ArgumentError(
                f"{name} takes or gives {type}, which is not in C order; a function of "
                "Numba calls those whose arrays are: lower it for such arguments",
                user_location(),
            )


def _native_lines(
    name: str, inputs: Sequence[ArrayType], outputs: Sequence[ArrayType]
) -> list[str]:
    """Return the source lines of an njit function that runs the plan of ``name``.

    The function checks shapes, makes the arguments contiguous, allocates results, and
    runs the plan on the arrays' addresses. The caller defines ``run``, the native entry
    that runs the plan ``image``, and the Numba dtypes ``dtype_0``, ... of arguments and
    results. For one vector it is about ::

        def call(x0):
            if x0.shape != (3,):
                raise ValueError(...)
            a0 = np.ascontiguousarray(x0)
            a1 = np.empty((3,), dtype_1)
            at = np.empty(2, np.int64)
            at[0] = a0.ctypes.data
            at[1] = a1.ctypes.data
            failed = run(image, at.ctypes.data)
            if failed != 0 or a0.size < 0 or a1.size < 0 or at.size < 0:
                raise RuntimeError(...)
            return a1
    """
    count, places = len(inputs), list[str]()
    lines = [f"def call({', '.join(f'x{k}' for k in range(count))}):"]
    for k, type in enumerate(inputs):
        if type.shape:
            message = f"argument {k} of {name} must be {type}: it was compiled for it"
            lines += [
                f"    if x{k}.shape != {type.shape}:",
                f"        raise ValueError({message!r})",
                f"    a{k} = np.ascontiguousarray(x{k})",
            ]
        else:
            lines += [f"    a{k} = np.empty(1, dtype_{k})", f"    a{k}[0] = x{k}"]
        places.append(f"a{k}")
    for k, type in enumerate(outputs, count):
        lines.append(f"    a{k} = np.empty({type.shape or 1}, dtype_{k})")
        places.append(f"a{k}")
    lines.append(f"    at = np.empty({max(len(places), 1)}, np.int64)")
    lines += [f"    at[{k}] = {place}.ctypes.data" for k, place in enumerate(places)]
    lines.append("    failed = run(image, at.ctypes.data)")
    # Numba frees an array after its last use. Reading ``size`` after the run, which is
    # never negative, keeps the arrays alive until then.
    lines.append(
        "    if failed != 0"
        + "".join(f" or {place}.size < 0" for place in (*places, "at"))
        + ":"
    )
    text = f"{name} was interrupted, or memory ran out"
    lines.append(f"        raise RuntimeError({text!r})")
    results = [
        f"a{k}" if type.shape else f"a{k}[0]" for k, type in enumerate(outputs, count)
    ]
    single = results[0] if len(results) == 1 else f"({', '.join(results)})"
    lines.append(f"    return {single}")
    return lines


def _check_types(
    name: str, inputs: Sequence[ArrayType], arguments: Sequence[Any]
) -> None:
    """Raise Numba's TypingError unless arguments of these Numba types fit ``inputs``.

    An array needs the same rank and dtype; for an input of rank 0 any number fits.
    ``name`` is the function's, for messages.
    """
    from numba import types
    from numba.core.errors import TypingError

    if len(arguments) != len(inputs):
        raise TypingError(f"{name} takes {len(inputs)} arguments, not {len(arguments)}")
    for k, (have, want) in enumerate(zip(arguments, inputs, strict=True)):
        dtype = _numba_type(name, want)
        if want.shape:
            fits = isinstance(have, types.Array) and have.ndim == len(want.shape)
            fits = fits and have.dtype == dtype
        else:
            fits = isinstance(have, (types.Number, types.Boolean))
        if not fits:
            raise TypingError(f"argument {k} of {name} must be {want}, not {have}")


def _object_call(jitted: Any) -> Any:
    """Make an njit function that calls ``jitted`` as a Python object, with the GIL.

    Its code for two results is about ::

        def call(*arguments):
            with objmode(y0=type_0, y1=type_1):
                y0, y1, = jitted(*arguments)
            return y0, y1,
    """
    from numba import njit, objmode
    from numba.extending import overload

    name = getattr(jitted, "__name__", "a jitted function")

    def choose(*arguments: Any) -> Any:
        """Return the implementation for arguments of these Numba types.

        It is a generated function that leaves Numba's compiled code (``objmode``) to
        call ``jitted``, and declares the results' Numba types ``type_0``, ...
        """
        results, is_tuple = _results_for(jitted, name, arguments)
        scope: dict[str, Any] = {"objmode": objmode, "jitted": jitted}
        names = [f"y{k}" for k in range(len(results))]
        scope |= {f"type_{k}": type for k, type in enumerate(results)}
        typed_names = ", ".join(f"{y}=type_{k}" for k, y in enumerate(names))
        # A comma after the last name makes a tuple, also of a single name.
        values = f"{', '.join(names)}{',' * is_tuple}"
        lines = [
            "def call(*arguments):",
            f"    with objmode({typed_names}):",
            f"        {values} = jitted(*arguments)",
            # A result of rank 0 is an array in Python, and a number for Numba.
            *(
                f"        {y} = {y}[()]"
                for y, type in zip(names, results, strict=True)
                if not hasattr(type, "ndim")
            ),
            f"    return {values}",
        ]
        return _executed("\n".join(lines), scope)

    # Numba requires that the called function (a stub), the function that chooses by
    # types, and the implementation have the same parameters.
    stub = _executed("def call(*arguments): ...", {})
    typed = "def call(*arguments): return choose(*arguments)"
    overload(stub)(_executed(typed, {"choose": choose}))
    whole = "def call(*arguments):\n    return stub(*arguments)"
    return njit(_executed(whole, {"stub": stub}))


def _results_for(
    jitted: Any, name: str, arguments: Sequence[Any]
) -> tuple[list[Any], bool]:
    """Return the Numba types of the results of ``jitted``, and if they form a tuple.

    ``arguments`` are the Numba types of a call's arguments, which have no extents. If
    ``jitted`` was compiled before for arguments of the same dtypes and ranks, the
    results are taken from there. Otherwise the function is traced with axes of extent
    ``_EXTENT``. Raises TypingError, about ``name``, if that fails.
    """
    from numba import types
    from numba.core.errors import TypingError
    from numba.np.numpy_support import as_dtype

    structs: list[ShapeDtypeStruct] = []
    for argument in arguments:
        is_array = isinstance(argument, types.Array)
        if not is_array and not isinstance(argument, (types.Number, types.Boolean)):
            raise TypingError(f"{name} takes arrays and numbers, not {argument}")
        shape = (_EXTENT,) * argument.ndim if is_array else ()
        dtype = as_dtype(argument.dtype if is_array else argument)
        structs.append(ShapeDtypeStruct(shape, dtype))
    dtypes_and_ranks = [(x.dtype, len(x.shape)) for x in structs]
    for compiled, out_tree in jitted.compiled_signatures():
        known = [(t.dtype, len(t.shape)) for t in compiled.input_types]
        if known == dtypes_and_ranks:
            is_tuple = out_tree != tree.structure(0)
            return [_result_type(name, t) for t in compiled.output_types], is_tuple
    try:
        results = eval_shape(jitted, *structs)
    except (ArrayfnError, TypeError, ValueError, IndexError) as error:
        raise TypingError(
            f"what {name} returns is not known, since Numba knows no shapes, and it "
            f"cannot be traced with {', '.join(map(str, structs))}: call it once on "
            f"such arrays first. {error}"
        ) from error
    leaves = tree.leaves(results)
    # The structure of 0 is that of a single array.
    if tree.structure(results) not in (
        tree.structure(0),
        tree.structure((0,) * len(leaves)),
    ):
        raise TypingError(f"{name} returns a container other than a tuple of arrays")
    numba_types = [_result_type(name, x) for x in leaves]
    return numba_types, not hasattr(results, "dtype")


def _result_type(name: str, type: Any) -> Any:
    """Return the Numba type of a result of arrayfn's ``type``: a C array or a number.

    ``name`` is the function's, for messages.
    """
    from numba import types

    dtype = _numba_type(name, type)
    ndim = len(type.shape)
    return types.Array(dtype, ndim, "C") if ndim else dtype


def _numba_type(name: str, type: Any) -> Any:
    """Return the Numba type of the elements of an array of arrayfn's ``type``.

    Raises ArgumentError, about the function ``name``, if Numba lacks the dtype.
    """
    from numba.core.errors import NumbaNotImplementedError
    from numba.np.numpy_support import from_dtype

    try:
        return from_dtype(np.dtype(type.dtype))
    except NumbaNotImplementedError:
        raise ArgumentError(
            f"{name} takes or gives arrays of {type.dtype.name}, which Numba does "
            "not have",
            user_location(),
        ) from None


@cache
def _runner() -> Any:
    """Return the native entry ``run_at`` as a C function, which Numba can call.

    It takes the addresses of an image and of the arrays' addresses, and takes the GIL
    itself.
    """
    word = ctypes.c_int64
    return ctypes.CFUNCTYPE(word, word, word)(native_address(run_at))


def _executed(source: str, scope: dict[str, Any]) -> Any:
    """Execute ``source`` with the globals ``scope``; return its function ``call``."""
    exec(source, scope)
    return scope["call"]


__all__ = ["type_of_compiled", "type_of_jitted"]
