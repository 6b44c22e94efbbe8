"""The record of a compilation, and a line on the terminal if it takes long.

``building`` surrounds the compilation. After a second it prints one line to standard
error, where a person reads it (a terminal or a notebook), and another at the end.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Final

from arrayfn import tree
from arrayfn.compilation.static_arguments import StaticArguments
from arrayfn.errors import plural
from arrayfn.ir import ArrayType, Mesh
from arrayfn.logs import COMPILE, RETRACE
from arrayfn.records import record

PATIENCE: Final = 1.0  # seconds after which a line is printed

Key = tuple[tree.TreeDef, StaticArguments, tuple[ArrayType, ...], str, Mesh | None]
"""What a function is compiled for: structure, static arguments, types, backend,
and the mesh of ``set_mesh`` if the function asks for it."""


@record
class Built:
    """The record of one compilation, for logs and ``signatures``.

    ``name`` is the function's. ``reason`` says which argument caused the compilation,
    if the function had been compiled before. ``stage`` is what is being done:
    "tracing", "lowering" or "compiling". ``begin`` is the time of its begin by
    ``time.perf_counter``, and ``seconds`` its duration, once it has ended. ``kernels``
    is the number of kernels of the plan. ``from_disk`` and ``compiled`` count the
    kernels that were in the disk cache and those that were not; the process already had
    the others.
    """

    name: str
    backend: str
    reason: str = ""
    stage: str = "tracing"
    kernels: int = 0
    from_disk: int = 0
    compiled: int = 0
    seconds: float = 0.0
    begin: float = field(default_factory=time.perf_counter)


@contextmanager
def building(name: str, backend: str, reason: str) -> Generator[Built]:
    """Record and announce the compilation of ``name`` within a block.

    ``backend`` is the one it is compiled for, and ``reason`` what ``reason_of`` says.
    If it takes long, a line in a terminal says what is being compiled.
    """
    from arrayfn.backends.object_cache import COUNTS

    built = Built(name, backend, reason)
    if reason:
        RETRACE.info("%s: %s", name, reason)
    hits, misses = COUNTS["hits"], COUNTS["misses"]
    # A timer prints the line, unless the compilation ends before.
    line = threading.Timer(PATIENCE, _announce, (built,)) if _is_read() else None
    if line is not None:
        line.daemon = True
        line.start()
    try:
        yield built
    finally:
        built.seconds = time.perf_counter() - built.begin
        if line is not None:
            line.cancel()
            if built.seconds > PATIENCE:
                _say(f"arrayfn: {name} took {built.seconds:.1f} s to compile\n")
    built.from_disk = COUNTS["hits"] - hits
    built.compiled = COUNTS["misses"] - misses
    COMPILE.info(
        "%s for %s: %s in %.3f s (%s compiled, %d from the disk cache)",
        *(name, backend, plural(built.kernels, "kernel"), built.seconds),
        *(plural(built.compiled, "function"), built.from_disk),
    )


def _announce(built: Built) -> None:
    """Print what is being compiled."""
    count = f" {plural(built.kernels, 'kernel')}" if built.kernels else ""
    _say(f"arrayfn: {built.stage} {built.name} for {built.backend}{count} ...\n")


def _say(line: str) -> None:
    """Print ``line`` to standard error at once."""
    sys.stderr.write(line)
    sys.stderr.flush()


def _is_read() -> bool:
    """Whether a person reads standard error as it is written."""
    return "ipykernel" in sys.modules or bool(sys.stderr and sys.stderr.isatty())


def reason_of(key: Key, earlier: Iterable[Key], names: Callable[[], list[str]]) -> str:
    """Say why a call compiles again: how ``key`` differs from the nearest earlier key.

    Empty if there are no ``earlier`` keys. ``names`` returns the arguments' names.
    """
    # Another thread may add to ``earlier``: tuple() takes it as it is now.
    reasons = [_differences(key, other, names) for other in tuple(earlier)]
    return "; ".join(min(reasons, key=len)) if reasons else ""


def _differences(key: Key, other: Key, names: Callable[[], list[str]]) -> list[str]:
    """Return a sentence for each difference between ``key`` and an earlier key."""
    structure, static, types, backend, mesh = key
    old_structure, old_static, old_types, old_backend, old_mesh = other
    sentences: list[str] = []
    if mesh != old_mesh:
        sentences.append(f"the mesh of set_mesh is {mesh}, not {old_mesh}")
    if backend != old_backend:
        sentences.append(f"it runs on {backend}, not on {old_backend} as before")
    if structure != old_structure:
        sentences.append(
            "the arguments have another structure: "
            f"{tree.text_of(structure)}, not {tree.text_of(old_structure)}"
        )
    elif types != old_types:
        sentences += [
            f"{name or f'array {k}'} is {new}, not {old}"
            for k, (name, new, old) in enumerate(
                zip(names(), types, old_types, strict=True)
            )
            if new != old
        ]
    if static != old_static:
        sentences += _static_differences(static, old_static)
    return sentences


def _static_differences(static: StaticArguments, other: StaticArguments) -> list[str]:
    """Return a sentence for each static argument that differs from ``other``'s."""
    old_values: dict[Any, Any] = dict([*other.positional, *other.named])
    sentences: list[str] = []
    for parameter, value in (*static.positional, *static.named):
        old = old_values.get(parameter)
        if value != old:
            but = "" if old is None else f", not {old.value!r}"
            sentences.append(f"static argument {parameter!r} is {value.value!r}{but}")
    return sentences
