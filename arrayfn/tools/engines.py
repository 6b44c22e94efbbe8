"""Other libraries that ``compare`` runs beside arrayfn: NumPy, JAX, PyTorch, Numba.

An engine puts operands into its library's arrays, runs a function of them to its end,
and gives NumPy arrays back. The functions that arrayfn's own operators have as
counterparts stand in ``COUNTERPARTS``, written with each library's own functions.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn import tree
from arrayfn.adapters.tensors import tensor_of
from arrayfn.errors import BackendError, user_location
from arrayfn.records import frozen

Array = np.ndarray[Any, Any]
Call = Callable[..., Any]


@frozen
class Engine:
    """How to use another library: its module, its arrays, and how to wait for it.

    The methods here are for libraries that take NumPy arrays and compute at once.
    """

    name: str
    module: str

    @property
    def is_installed(self) -> bool:
        """Whether the library can be imported."""
        return importlib.util.find_spec(self.module) is not None

    def library(self) -> Any:
        """Import and return the library's module; BackendError if it is missing."""
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            raise BackendError(
                f"compare: engine {self.name!r} needs {self.module}, which is not "
                f"installed: {error}",
                user_location(),
            ) from error

    def put(self, x: Any) -> Any:
        """Convert a NumPy array to one of the library's; return other values."""
        return x

    def get(self, x: Any) -> Array:
        """Convert a result to a NumPy array."""
        return np.asarray(x)

    def wait(self, x: Any) -> Any:
        """Wait until ``x`` is computed, and return it."""
        return x

    def compiled(self, function: Call) -> Call:
        """Return ``function`` in the form that the library runs fast."""
        return function

    def entered(self) -> AbstractContextManager[Any]:
        """Return a context manager for the time in which the library computes."""
        return nullcontext()


class Jax(Engine):
    """Jitted functions of JAX, with 64-bit numbers."""

    @override
    def put(self, x: Any) -> Any:
        """Convert a NumPy array to one of JAX; return other values."""
        return self.library().numpy.asarray(x) if isinstance(x, np.ndarray) else x

    @override
    def wait(self, x: Any) -> Any:
        """Wait until ``x`` is computed, and return it."""
        return self.library().block_until_ready(x)

    @override
    def compiled(self, function: Call) -> Call:
        """Return the jitted ``function``."""
        return self.library().jit(function)

    @override
    def entered(self) -> AbstractContextManager[Any]:
        """Enable 64-bit numbers."""
        return self.library().enable_x64(True)


class Torch(Engine):
    """Functions of PyTorch's CPU tensors, as they are, without its autograd."""

    @override
    def put(self, x: Any) -> Any:
        """Convert a copy of a NumPy array to a tensor; return other values."""
        if not isinstance(x, np.ndarray):
            return x
        return tensor_of(self.library(), np.array(x))

    @override
    def get(self, x: Any) -> Array:
        """Convert a tensor; of bfloat16, which ``numpy()`` lacks, reread the bits."""
        library = self.library()
        if x.dtype == library.bfloat16:
            import ml_dtypes

            return x.view(library.uint16).numpy().view(ml_dtypes.bfloat16)
        return x.numpy()

    @override
    def entered(self) -> AbstractContextManager[Any]:
        """Disable autograd."""
        return self.library().no_grad()


ENGINES: Final[dict[str, Engine]] = {
    "numpy": Engine("numpy", "numpy"),
    "numba": Engine("numba", "numba"),
    "jax": Jax("jax", "jax"),
    "torch": Torch("torch", "torch"),
}


def counterpart(operator: str, engine: str) -> Call | None:
    """Return the function of ``engine`` that computes ``operator``, or None."""
    return COUNTERPARTS.get(operator, {}).get(engine)


# Each takes the operands in the operator's order, then its static arguments by name.
# A TypeError says that the library cannot compute the operator for these arguments.


def _np_softmax(x: Any, *, axis: int = -1, where: Any = None) -> Any:
    """``nn.softmax`` in NumPy."""
    if where is not None:
        return np.where(where, _np_softmax(_smallest_where_not(x, where), axis=axis), 0)
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _np_log_softmax(x: Any, *, axis: int = -1, where: Any = None) -> Any:
    """``nn.log_softmax`` in NumPy."""
    if where is not None:
        value = _np_log_softmax(_smallest_where_not(x, where), axis=axis)
        return np.where(where, value, -np.inf)
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def _smallest_where_not(x: Any, where: Any) -> Any:
    """Replace x by its dtype's smallest finite number where ``where`` is false."""
    return np.where(where, x, np.finfo(x.dtype).min)


def _np_layer_norm(
    x: Any,
    scale: Any = None,
    bias: Any = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> Any:
    """``nn.layer_norm`` in NumPy."""
    centred = x - x.mean(axis, keepdims=True)
    size = np.sqrt(np.square(centred).mean(axis, keepdims=True) + x.dtype.type(epsilon))
    return _affine(centred / size, scale, bias)


def _affine(x: Any, scale: Any, bias: Any = None) -> Any:
    """Return x * scale + bias in any library; None leaves out a step."""
    x = x if scale is None else x * scale
    return x if bias is None else x + bias


def _np_rms_norm(
    x: Any, scale: Any = None, *, axis: int = -1, epsilon: float = 1e-6
) -> Any:
    """``nn.rms_norm`` in NumPy."""
    size = np.square(x).mean(axis, keepdims=True) + x.dtype.type(epsilon)
    return _affine(x / np.sqrt(size), scale)


def _np_gelu(x: Any, *, approximate: bool = True) -> Any:
    """``nn.gelu`` in NumPy: x * ndtr(x), or its approximation by tanh."""
    if not approximate:
        return x * importlib.import_module("scipy.special").ndtr(x)
    scalar = x.dtype.type  # constants of x's dtype, so that the result has it too
    inner = scalar(0.7978845608028654) * (x + scalar(0.044715) * x**3)  # sqrt(2 / pi)
    return x * scalar(0.5) * (1 + np.tanh(inner))


def _np_attention(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
    """``nn.dot_product_attention`` in NumPy, of arrays [..., length, heads, size].

    There may be several heads of ``q`` for each head of ``k`` and ``v``.
    """
    groups = q.shape[-2] // k.shape[-2]
    q, k, v = (np.moveaxis(x, -2, -3) for x in (q, k, v))
    k, v = (np.repeat(x, groups, axis=-3) for x in (k, v))
    logits = q @ np.swapaxes(k, -1, -2) * q.dtype.type(q.shape[-1] ** -0.5)
    if is_causal:
        logits = np.where(np.tri(*logits.shape[-2:], dtype=bool), logits, -np.inf)
    return np.moveaxis(_np_softmax(logits) @ v, -3, -2)


def _np_cross_entropy(logits: Any, labels: Any) -> Any:
    """``nn.cross_entropy`` of each row in NumPy."""
    return -np.take_along_axis(_np_log_softmax(logits), labels[..., None], -1)[..., 0]


def _of(module: str, name: str) -> Call:
    """Make a function that imports ``module`` and calls its function ``name``."""

    def call(*operands: Any, **static: Any) -> Any:
        """Import the module and call its function."""
        return getattr(importlib.import_module(module), name)(*operands, **static)

    call.__name__ = call.__qualname__ = name
    return call


def _torch_softmax(name: str) -> Call:
    """Make a function that calls PyTorch's ``name``, with a parameter ``axis``."""

    def call(x: Any, *, axis: int = -1) -> Any:
        """Call PyTorch's function with ``dim=axis``."""
        return _of("torch", name)(x, dim=axis)

    call.__name__ = call.__qualname__ = name
    return call


def _torch_normalized(name: str, default: float) -> Call:
    """Make a function that calls PyTorch's normalization ``name`` of the last axis.

    ``default`` is the default of its parameter ``epsilon``.
    """

    def call(x: Any, *affine: Any, axis: int = -1, epsilon: float = default) -> Any:
        """Normalize ``x``; ``affine`` are the scale and the bias, if any."""
        functional = importlib.import_module("torch.nn.functional")
        if axis not in (-1, x.ndim - 1):
            raise TypeError(f"{name} normalizes the last axis, not axis {axis}")
        return getattr(functional, name)(x, x.shape[-1:], *affine, eps=epsilon)

    call.__name__ = call.__qualname__ = name
    return call


def _torch_attention(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
    """``nn.dot_product_attention`` in PyTorch."""
    attention = _of("torch.nn.functional", "scaled_dot_product_attention")
    # PyTorch takes the axis of heads before the axis of positions.
    q, k, v = (x.transpose(-2, -3) for x in (q, k, v))
    is_grouped = q.shape[-3] != k.shape[-3]
    out = attention(q, k, v, is_causal=is_causal, enable_gqa=is_grouped)
    return out.transpose(-2, -3)


def _torch_gelu(x: Any, *, approximate: bool = True) -> Any:
    """``nn.gelu`` in PyTorch."""
    gelu = _of("torch.nn.functional", "gelu")
    return gelu(x, approximate="tanh" if approximate else "none")


def _torch_cross_entropy(logits: Any, labels: Any) -> Any:
    """``nn.cross_entropy`` of each row in PyTorch."""
    cross_entropy = _of("torch.nn.functional", "cross_entropy")
    return cross_entropy(logits, labels.long(), reduction="none")


def _torch_conv(
    x: Any, kernel: Any, *, window_strides: Sequence[int], padding: Any
) -> Any:
    """``lax.conv_general_dilated`` in PyTorch, with only strides and padding.

    PyTorch pads both sides of an axis alike. Raises TypeError for other ``padding``.
    """
    name = f"conv{x.ndim - 2}d"
    conv = _of("torch.nn.functional", name)
    if isinstance(padding, str):
        around = padding.lower()
    elif any(low != high for low, high in padding):
        raise TypeError(f"{name} pads both sides of an axis alike, not by {padding}")
    else:
        around = tuple([low for low, _ in padding])
    return conv(x, kernel, stride=tuple(window_strides), padding=around)


def _jax_layer_norm(
    x: Any,
    scale: Any = None,
    bias: Any = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> Any:
    """``nn.layer_norm`` in JAX."""
    standardized = _of("jax.nn", "standardize")(x, axis=axis, epsilon=epsilon)
    return _affine(standardized, scale, bias)


def _jax_rms_norm(
    x: Any, scale: Any = None, *, axis: int = -1, epsilon: float = 1e-6
) -> Any:
    """``nn.rms_norm`` in JAX."""
    jnp, lax = (importlib.import_module(f"jax.{name}") for name in ("numpy", "lax"))
    size = jnp.mean(jnp.square(x), axis=axis, keepdims=True)
    return _affine(x * lax.rsqrt(size + epsilon), scale)


def _jax_cross_entropy(logits: Any, labels: Any) -> Any:
    """``nn.cross_entropy`` of each row in JAX."""
    jnp = importlib.import_module("jax.numpy")
    taken = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return _of("jax.nn", "logsumexp")(logits, axis=-1) - taken


def _rows(table: Any, indices: Any) -> Any:
    """``nn.embedding`` in any library: the rows of ``table`` at ``indices``."""
    return table[indices]


COUNTERPARTS: Final[dict[str, dict[str, Call]]] = {
    "nn.softmax": {
        "numpy": _np_softmax,
        "jax": _of("jax.nn", "softmax"),
        "torch": _torch_softmax("softmax"),
    },
    "nn.log_softmax": {
        "numpy": _np_log_softmax,
        "jax": _of("jax.nn", "log_softmax"),
        "torch": _torch_softmax("log_softmax"),
    },
    "nn.layer_norm": {
        "numpy": _np_layer_norm,
        "jax": _jax_layer_norm,
        "torch": _torch_normalized("layer_norm", 1e-5),
    },
    "nn.rms_norm": {
        "numpy": _np_rms_norm,
        "jax": _jax_rms_norm,
        "torch": _torch_normalized("rms_norm", 1e-6),
    },
    "nn.gelu": {
        "numpy": _np_gelu,
        "jax": _of("jax.nn", "gelu"),
        "torch": _torch_gelu,
    },
    "nn.dot_product_attention": {
        "numpy": _np_attention,
        "jax": _of("jax.nn", "dot_product_attention"),
        "torch": _torch_attention,
    },
    "nn.cross_entropy": {
        "numpy": _np_cross_entropy,
        "jax": _jax_cross_entropy,
        "torch": _torch_cross_entropy,
    },
    "nn.embedding": {
        "numpy": _rows,
        "jax": _rows,
        "torch": _rows,
    },
    "numpy.matmul": {
        "numpy": np.matmul,
        "jax": _of("jax.numpy", "matmul"),
        "torch": _of("torch", "matmul"),
    },
    "lax.conv_general_dilated": {
        "jax": _of("jax.lax", "conv_general_dilated"),
        "torch": _torch_conv,
    },
}
"""What other libraries call arrayfn's operators, by the operator's name."""


# What is measured is checked by the errors in the table: a counterpart that computes
# something else has large ones.


def prepared(engine: Engine, function: Call, args: Any) -> tuple[Call, Any]:
    """Return ``function`` as a call that waits for its results, and its operands.

    The operands are ``args`` as arrays of the engine.
    """
    with engine.entered():
        operands = tree.map(engine.put, args)
        compiled = engine.compiled(function)

    def call(*operands: Any) -> Any:
        """Call the compiled function, and wait for its results."""
        with engine.entered():
            return engine.wait(compiled(*operands))

    return call, operands
