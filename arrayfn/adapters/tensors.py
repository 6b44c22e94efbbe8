"""Functions of other libraries as kernels of operators.

Each adapter takes a function or kernel of a library and gives what
``Operator.kernel`` registers::

    @nn.softmax.kernel("cpu")
    @af.adapters.torch
    def by_torch(x, where, axis):
        return torch.softmax(x, axis)

Arrays are shared through DLPack, without a copy. On a GPU the work is enqueued on the
default stream; the plan's stream waits for it, and it for the plan's. The operands must
not be written to. The first call of each signature is compared with the operator's body
as for any kernel. Nothing here imports a library before its kernel is called.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import numpy as np

from arrayfn.errors import (
    ArgumentError,
    BackendError,
    ShapeError,
    plural,
    user_location,
)
from arrayfn.primitives.rules import as_list

Kernel = Callable[..., None]
Grid = int | Sequence[int] | Callable[[Mapping[str, Any]], Sequence[int]]
Launch = Callable[..., tuple[Grid, Mapping[str, Any]]]

_STORED_AS: Final = {1: np.uint8, 2: np.uint16}


def torch(
    function: Callable[..., Any] | None = None, *, results: int = 1, out: bool = False
) -> Any:
    """Make a kernel that calls a function of PyTorch tensors, on a CPU or a GPU.

    ``function`` takes the operands (None for an operand that is not given), then the
    static arguments by name. It returns the result, or a tuple with as many results as
    ``results`` says. With ``out``, the function takes the tensors for the results after
    the operands, and returns nothing. ``function`` runs without PyTorch's own autograd.
    Raises BackendError at the first call if PyTorch is not installed, and ShapeError if
    a result has another shape than the operator's result.

    >>> import arrayfn as af
    >>> kernel = af.adapters.torch(lambda x: x * 2)  # af.operator(f).kernel("cpu")(...)
    >>> kernel.__name__
    '<lambda>'
    """
    if function is None:
        return functools.partial(torch, results=results, out=out)

    @functools.wraps(function)
    def kernel(*arrays: Any, **static: Any) -> None:
        """Call the function on tensors that share the arrays' memory."""
        library = _torch(function)
        with ExitStack() as stack:
            tensors = _tensors(library, arrays, stack)
            stack.enter_context(library.no_grad())
            if out:
                function(*tensors, **static)
                return
            # The last ``results`` tensors are those to write.
            returned = function(*tensors[:-results], **static)
            _write(function, returned, tensors[-results:])

    # ``inspect`` would find the parameters of ``function`` by this attribute.
    del kernel.__wrapped__
    return kernel


def triton(kernel: Any, launch: Launch) -> Kernel:
    """Make a kernel that launches a function of ``triton.jit`` (or its autotuner).

    ``launch(*arrays, **static)`` gets the arrays of operands and results (for their
    shapes) and the static arguments. ``launch`` returns the grid, as Triton takes it,
    and the arguments to pass by name: sizes, ``tl.constexpr`` parameters,
    ``num_warps``. The pointers of operands and results are passed first, in their
    order. With ``TRITON_INTERPRET=1`` such a kernel also computes for ``"cpu"``.

    >>> import arrayfn as af
    >>> def launch(x, out):  # of @triton.jit def double(x_ptr, out_ptr, n, BLOCK): ...
    ...     return (-(-x.size // 1024),), {"n": x.size, "BLOCK": 1024}
    >>> doubled = af.adapters.triton(print, launch)
    """

    def launched(*arrays: Any, **static: Any) -> None:
        """Launch the kernel on PyTorch's stream."""
        library = _torch(kernel)  # Triton asks PyTorch for the stream
        grid, named = _launch_of(launch, kernel, arrays, static)
        with ExitStack() as stack:
            tensors = _tensors(library, arrays, stack)
            pointers = [x for x in tensors if x is not None]
            kernel[(grid,) if isinstance(grid, int) else grid](*pointers, **named)

    return _named(launched, kernel)


def tilelang(factory: Callable[..., Any], sizes: Callable[..., Any]) -> Kernel:
    """Make a kernel from a ``factory``, a function of ``tilelang.jit``.

    ``sizes(*arrays, **static)`` gets the arrays of operands and results. ``sizes``
    returns the arguments of ``factory``, as a tuple or a mapping by name. The factory
    returns a compiled function, which is kept for these arguments. The compiled
    function is called with the tensors of operands and results. If it has ``out_idx``,
    it is called with the operands only, and its results are copied.

    >>> import arrayfn as af
    >>> tiled = af.adapters.tilelang(print, lambda x, out: x.shape)
    """
    functions: dict[Any, Any] = {}  # compiled functions by the factory's arguments

    def called(*arrays: Any, **static: Any) -> None:
        """Call the kernel that is compiled for these sizes; compile it at first use."""
        library = _torch(factory)
        arguments = sizes(*arrays, **static)
        by_name = isinstance(arguments, Mapping)
        key = tuple(arguments.items()) if by_name else tuple(arguments)
        if key not in functions:
            functions[key] = factory(**arguments) if by_name else factory(*arguments)
        compiled = functions[key]
        with ExitStack() as stack:
            tensors = [x for x in _tensors(library, arrays, stack) if x is not None]
            # ``out_idx``: the positions of parameters that the function returns, a
            # number or several.
            outputs = getattr(compiled, "out_idx", None)
            is_list = isinstance(outputs, Sequence)
            count = len(outputs) if is_list else int(outputs is not None)
            result = compiled(*tensors[: len(tensors) - count])
            if count:
                _write(factory, result, tensors[-count:])

    return _named(called, factory)


def cuda_jit(kernel: Any, launch: Callable[..., tuple[Any, Any]]) -> Kernel:
    """Make a kernel that launches a function of ``numba.cuda.jit``.

    ``launch(*arrays, **static)`` gets the arrays of operands and results and the static
    arguments. ``launch`` returns the grid and the block, and then any values to pass
    after the arrays: ``((blocks,), (threads,), n)``.

    >>> import arrayfn as af
    >>> def launch(x, out):  # of @cuda.jit def double(x, out): ...
    ...     return -(-x.size // 256), 256
    >>> doubled = af.adapters.cuda_jit(print, launch)
    """

    def launched(*arrays: Any, **static: Any) -> None:
        """Launch the kernel on the grid and the blocks that ``launch`` says."""
        grid, block, *values = launch(*arrays, **static)
        present = [x for x in arrays if x is not None]  # None: an operand not given
        kernel[grid, block](*present, *values)

    return _named(launched, getattr(kernel, "py_func", kernel))


def _launch_of(
    launch: Launch, kernel: Any, arrays: Sequence[Any], static: Mapping[str, Any]
) -> tuple[Any, Mapping[str, Any]]:
    """Call ``launch`` on the arrays; return the grid and the keyword arguments.

    Raises ArgumentError if ``launch`` returns something else.
    """
    pair: Any = launch(*arrays, **static)
    if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Mapping):
        return pair
    raise ArgumentError(
        f"triton: launch of {_name(kernel)} returns the grid and a dict of arguments, "
        f"as in ((blocks,), {{'n': n, 'BLOCK': 1024}}), not {pair!r}",
        user_location(),
    )


def _torch(wanted: Any) -> Any:
    """Import and return PyTorch; raise BackendError if it is not installed.

    ``wanted`` is the function that needs it, for the message.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise BackendError(
            f"kernel {_name(wanted)} needs torch, which is not installed: {error}. "
            "Install it, or remove the kernel from its operator",
            user_location(),
        ) from error


def _tensors(library: Any, arrays: Sequence[Any], stack: ExitStack) -> list[Any]:
    """Return the arrays as tensors of ``library`` that share their memory.

    None stays None. If some array is on a GPU, the default stream of PyTorch is current
    until ``stack`` ends.
    """
    on_gpu = any(not isinstance(x, np.ndarray) for x in arrays if x is not None)
    if on_gpu:
        stack.enter_context(library.cuda.stream(library.cuda.default_stream()))
    return [None if x is None else tensor_of(library, x) for x in arrays]


def tensor_of(library: Any, x: Any) -> Any:
    """Return ``x`` as a tensor of PyTorch (``library``) that shares its memory."""
    if not isinstance(x, np.ndarray) or x.dtype.type.__module__ == "numpy":
        return library.from_dlpack(x)
    # NumPy does not export dtypes of other packages, such as bfloat16. Pass their bits.
    bits = library.from_dlpack(x.view(_STORED_AS[x.dtype.itemsize]))
    return bits.view(getattr(library, x.dtype.name))


def _write(function: Any, returned: Any, results: Sequence[Any]) -> None:
    """Copy what ``function`` returned into the tensors ``results``.

    Raises ArgumentError if the number of results differs, ShapeError if a shape does.
    """
    values = as_list(returned)
    if len(values) != len(results):
        raise ArgumentError(
            f"kernel {_name(function)} returned {plural(len(values), 'result')}, not "
            f"{len(results)}; pass results={len(values)} if the operator has that many",
            user_location(),
        )
    for k, (value, result) in enumerate(zip(values, results, strict=True)):
        have, want = tuple(value.shape), tuple(result.shape)
        if have != want:
            raise ShapeError(
                f"kernel {_name(function)} returned result {k} of shape {have}; the "
                f"operator's has {want}",
                user_location(),
            )
        result.copy_(value)


def _name(function: Any) -> str:
    """Return the name of a function, or of the function ``fn`` that it wraps."""
    name = getattr(function, "__name__", None)
    return name or getattr(getattr(function, "fn", None), "__name__", "a kernel")


def _named(kernel: Kernel, function: Any) -> Kernel:
    """Give ``kernel`` the name and the docstring of ``function``, and return it."""
    kernel.__name__ = _name(function)
    kernel.__doc__ = getattr(function, "__doc__", None)
    return kernel


__all__ = ["cuda_jit", "tilelang", "torch", "triton"]
