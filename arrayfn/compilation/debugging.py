"""How calls are debugged: ``disable_jit``, ``debug_nans`` and ``debug_infs``.

Each is a block for one thread, and a field of ``config`` for the whole process. Calls
cost nothing more while all are off: another ``Jitted.__call__`` takes over while one is
on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from typing_extensions import override

from arrayfn import dtypes
from arrayfn.compilation.jitted import Jitted
from arrayfn.errors import ArgumentError, user_location
from arrayfn.ir import Params, Program, type_of
from arrayfn.ir.builder import ProgramBuilder
from arrayfn.passes.faults import INF, NAN
from arrayfn.primitives.base import Primitive
from arrayfn.primitives.rules import as_list
from arrayfn.tracing import Immediate
from arrayfn.tracing.frames import current_frame

OPTIONS: Final = ("disable_jit", "debug_nans", "debug_infs")
_KINDS: Final = {"debug_nans": NAN, "debug_infs": INF}


class _Choices(threading.local):
    """The options that blocks (``with debug_nans():``) set in this thread.

    ``by_option`` has the value of the innermost block; options without a block are
    those of the process.
    """

    def __init__(self) -> None:
        self.by_option: dict[str, bool] = {}


_choices = _Choices()
_process: dict[str, bool] = dict.fromkeys(OPTIONS, False)
_call_compiled = Jitted.__call__
_lock = threading.Lock()
_open_blocks: list[object] = []  # of all threads


def is_on(option: str) -> bool:
    """Whether ``option`` holds in this thread."""
    return _choices.by_option.get(option, _process[option])


def set_for_process(option: str, value: bool) -> None:
    """Set ``option`` to ``value`` for all threads, outside of blocks that choose it."""
    with _lock:
        _process[option] = value
        _watch_calls()


def _watch_calls() -> None:
    """Check every call while an option is on or a block is open, and none otherwise.

    Jitted functions are then called through ``_call_by_options``, and
    ``_check_results`` gets the results of operations outside ``jit``.
    """
    wanted = bool(_open_blocks) or any(_process.values())
    Jitted.__call__ = _call_by_options if wanted else _call_compiled
    Immediate.inspect = _check_results if wanted else None


@contextmanager
def _block(option: str, value: bool) -> Generator[None]:
    """A context in which ``option`` has this value for this thread."""
    before, block = dict(_choices.by_option), object()
    with _lock:
        _open_blocks.append(block)
        _watch_calls()  # calls are checked while a block is open
    _choices.by_option[option] = bool(value)
    try:
        yield
    finally:
        _choices.by_option = before
        with _lock:
            _open_blocks.remove(block)
            _watch_calls()


@contextmanager
def disable_jit(disable: bool = True) -> Generator[None]:
    """Run jitted functions as plain Python in this block and this thread.

    ``print``, ``pdb`` and ``if x > 0:`` then see values. Results are NumPy arrays, even
    if a device was named. Functions given to ``lax.scan`` and similar functions are
    still traced. Calls outside such blocks are not slower.

    >>> from arrayfn.compilation.jit import jit
    >>> f = jit(lambda x: 1.0 if x > 0 else -1.0)
    >>> with disable_jit():
    ...     f(2.0)
    1.0
    """
    with _block("disable_jit", disable):
        yield


@contextmanager
def debug_nans(new_val: bool = True) -> Generator[None]:
    """Raise NotFiniteError for each new NaN in this block and this thread.

    The error, a FloatingPointError, names the line of the first operation that gives
    NaN although no operand is NaN. Outside compiled functions it is raised at once. For
    a compiled function, it is raised at the end of the call. Compiled functions are
    compiled once more, as by ``jit(..., checks="nan")``. A NaN in an argument is not an
    error.

    >>> import arrayfn.numpy as anp
    >>> from arrayfn.compilation.jit import jit
    >>> with debug_nans():
    ...     jit(lambda x: anp.log(x) + 1.0)(-1.0)
    Traceback (most recent call last):
    ...
    arrayfn.errors.NotFiniteError: ... log makes NaN of operands without NaN: ...
    """
    with _block("debug_nans", new_val):
        yield


@contextmanager
def debug_infs(new_val: bool = True) -> Generator[None]:
    """Like ``debug_nans``, for infinities that result from finite operands.

    >>> import arrayfn.numpy as anp
    >>> with debug_infs():
    ...     anp.exp(1000.0)
    Traceback (most recent call last):
    ...
    arrayfn.errors.NotFiniteError: ... exp makes an infinity of finite operands: ...
    """
    with _block("debug_infs", new_val):
        yield


class Config:
    """Options of the whole process, for example ``config.debug_nans = True``.

    The options are ``disable_jit``, ``debug_nans`` and ``debug_infs``. The functions
    with these names make blocks, which set the option for their thread. An environment
    variable such as ``ARRAYFN_DEBUG_NANS=1`` sets an option when arrayfn is imported.

    >>> config = Config()
    >>> config.debug_nans = True
    >>> config.debug_nans
    True
    >>> config.update("debug_nans", False)
    """

    __slots__ = ()

    def update(self, name: str, value: bool) -> None:
        """Set the option ``name``, which may begin with ``jax_``."""
        setattr(self, name.removeprefix("jax_"), value)

    def __getattr__(self, name: str) -> bool:
        """Whether the option ``name`` holds in this thread."""
        if name not in OPTIONS:
            raise AttributeError(_unknown(name))
        return is_on(name)

    @override
    def __setattr__(self, name: str, value: bool) -> None:
        if name not in OPTIONS:
            raise ArgumentError(_unknown(name), user_location())
        set_for_process(name, bool(value))

    @override
    def __repr__(self) -> str:
        return f"Config({', '.join(f'{k}={is_on(k)}' for k in OPTIONS)})"


config: Final = Config()


def _unknown(name: str) -> str:
    """Return the message about an option that ``config`` has not."""
    return (
        f"config has no option {name!r}; it has {', '.join(OPTIONS)}. Other choices "
        "are arguments of jit"
    )


def set_by_environment() -> None:
    """Set the options that environment variables ask for."""
    for option in OPTIONS:
        if os.environ.get(f"ARRAYFN_{option.upper()}", "").lower() in ("1", "true"):
            set_for_process(option, value=True)


# What happens while an option is on.


def _kinds() -> frozenset[str]:
    """Return the kinds of checks of this thread, as ``with_checks`` takes them."""
    return frozenset(kind for option, kind in _KINDS.items() if is_on(option))


def _call_by_options(self: Jitted[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a call of a jitted function with the options of this thread."""
    if is_on("disable_jit"):
        return self.python_function(*args, **kwargs)
    kinds = _kinds()
    # Inside a trace a function is checked as a part of what is traced.
    if kinds and current_frame() is None:
        self = self.with_checks(kinds)
    return _call_compiled(self, *args, **kwargs)


def _check_results(
    primitive: Primitive, operands: Sequence[Any], params: Params, results: Any
) -> None:
    """Raise NotFiniteError if an operation outside ``jit`` makes NaN or an infinity.

    ``results`` are those that ``primitive`` has just computed of ``operands``. If they
    have NaN or infinities, the operation is repeated with checks, which know whether an
    operand had them.
    """
    kinds = _kinds()
    if not kinds or primitive.effect:
        return
    if any(_is_suspect(x, kinds) for x in as_list(results)):
        builder = ProgramBuilder(primitive.name)
        inputs = [builder.input(type_of(x).plain()) for x in operands]
        program = builder.build(builder.emit(primitive, inputs, params))
        _run_checked(program, [np.asarray(x) for x in operands], kinds)


def _is_suspect(result: Any, kinds: frozenset[str]) -> bool:
    """Whether ``result`` has NaN or infinities, if ``kinds`` ask for these."""
    array = np.asarray(result)
    if array.dtype not in dtypes.INEXACT:
        return False
    with np.errstate(all="ignore"):
        nan = NAN in kinds and bool(np.isnan(array).any())
        return nan or (INF in kinds and bool(np.isinf(array).any()))


def _run_checked(
    program: Program, operands: Sequence[Any], kinds: frozenset[str]
) -> None:
    """Interpret ``program`` on arrays, with checks of these ``kinds``, which raise."""
    from arrayfn.backends.registry import get_backend
    from arrayfn.compilation.compiled import with_faults
    from arrayfn.passes.checks import with_checks
    from arrayfn.passes.inline_calls import keep_none

    checked, sites = with_checks(program, kinds, keep_none)
    reference = get_backend("reference")
    run = with_faults(reference.load(reference.lower(checked, frozenset())), sites)
    # Operations of this run must not be checked in turn.
    with _block("debug_nans", value=False), _block("debug_infs", value=False):
        run(tuple(operands))
