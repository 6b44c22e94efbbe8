"""The commands of the command line, as functions that return the exit status.

``chosen`` has the parsed options. A command imports what it needs, so that other
commands need not wait for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import platform
import re
import runpy
import shutil
import sys
import textwrap
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np

import arrayfn
from arrayfn import dtypes
from arrayfn.backends.cpu.runtime import get_num_threads
from arrayfn.backends.object_cache import object_cache
from arrayfn.backends.registry import BACKENDS, LATER, backend_info
from arrayfn.compilation.jit import jit
from arrayfn.display.units import in_bytes
from arrayfn.errors import ArgumentError, plural
from arrayfn.transforms import grad

_PACKAGES: Final = ("numpy", "scipy", "numba", "llvmlite", "optree", "numba-cuda")
_TYPE: Final = re.compile(r"(\w+)\[([\d,]*)\]")


def info(chosen: Namespace) -> int:
    """Print versions, backends, threads and the cache."""
    for name, text in _facts():
        print(_fitted(f"{name:13} {text}", indent=14))
    return 0


def _fitted(text: str, indent: int = 6) -> str:
    """Wrap the lines of ``text`` between words to the width of the terminal.

    Continued lines begin with ``indent`` spaces. If the output is not a terminal, the
    text is unchanged, unless the environment variable ``COLUMNS`` is set.
    """
    width = shutil.get_terminal_size((0, 0)).columns
    if width <= 2 * indent:
        return text
    wrapper = textwrap.TextWrapper(
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join("\n".join(wrapper.wrap(line)) for line in text.split("\n"))


def _facts() -> Iterator[tuple[str, str]]:
    """Yield the pairs (name, value) that ``arrayfn info`` prints."""
    yield "arrayfn", f"{arrayfn.__version__} ({Path(arrayfn.__file__).parent})"
    yield "Python", f"{platform.python_version()} ({sys.executable})"
    for package in _PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            yield package, "not installed"
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "threads", f"{get_num_threads()} of {os.cpu_count()} processors"
    for name in dict.fromkeys((*BACKENDS, *LATER)):
        backend = backend_info(name)
        state = f"not available: {backend.missing}" if backend.missing else "available"
        if backend.kind == "implied":
            state = "used for arrays over several devices; nothing to install"
        yield f"  {name}", f"{state} ({backend.description})"
    cache = object_cache()
    entries = cache.entries()
    size = in_bytes(sum(entry.size for entry in entries))
    yield "cache", f"{cache.directory}: {plural(len(entries), 'entry')}, {size}"
    for name in sorted(os.environ):
        if name.startswith("ARRAYFN_"):
            yield name, os.environ[name]


def cache(chosen: Namespace) -> int:
    """List, measure or clear the disk cache."""
    disk_cache = object_cache()
    entries = sorted(disk_cache.entries(), key=lambda entry: -entry.used)
    size = in_bytes(sum(entry.size for entry in entries))
    if chosen.action == "list":
        for entry in entries:
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
            print(f"{used}  {entry.size:10,}  {entry.key}")
    elif chosen.action == "clear":
        disk_cache.clear()
        number = plural(len(entries), "entry")
        print(f"{disk_cache.directory}: removed {number}, {size}")
        return 0
    print(f"{disk_cache.directory}: {plural(len(entries), 'entry')}, {size}")
    return 0


def explain(chosen: Namespace) -> int:
    """Print what a function is compiled to, and why; with ``--html`` write a page."""
    from arrayfn.display.markup import page
    from arrayfn.tools.explain import explain as explained

    function, arguments = _target(chosen)
    if chosen.device:
        function = jit(function, device=chosen.device)
    explanation = explained(function, *arguments)
    print(_fitted(str(explanation)))
    if chosen.html:
        chosen.html.write_text(page("arrayfn", explanation._repr_html_()), "utf-8")
    return 0


def compare(chosen: Namespace) -> int:
    """Print accuracy and speed of a function on every backend."""
    from arrayfn.tools.compare import compare as compared

    function, arguments = _target(chosen)
    print(compared(function, *arguments))
    return 0


def bisect(chosen: Namespace) -> int:
    """Print the first equation that is wrong; return 1 if there is one, else 0."""
    from arrayfn.tools.bisect import bisect as bisected

    function, arguments = _target(chosen)
    fault = bisected(function, *arguments, device=chosen.device)
    print(_fitted(str(fault or "no equation is wrong, and no result is NaN")))
    return 0 if fault is None else 1


def profile(chosen: Namespace) -> int:
    """Run a script, and print where the time of its compiled functions went.

    The script sees ``sys.argv`` and ``sys.path`` as if Python had run it.
    """
    from arrayfn.tools.profile import profile as profiled

    script: Path = chosen.script
    if not script.is_file():
        raise ArgumentError(f"there is no script {script}")
    before = sys.argv, sys.path[:]
    sys.argv = [str(script), *chosen.rest]
    sys.path.insert(0, str(script.parent))
    try:
        with profiled() as measured:
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before
    print(measured)
    if chosen.save:
        measured.save(chosen.save)
    return 0


def launch(chosen: Namespace) -> int:
    """Run a script in several processes."""
    from arrayfn.tools import launch as processes

    return processes.run(chosen.n, chosen.script)


def coverage(chosen: Namespace) -> int:
    """Print which primitives and public names there are."""
    from arrayfn.tools import coverage as report

    return report.run()


def demo(chosen: Namespace) -> int:
    """Train a classifier and show what was compiled."""
    try:
        # Its libraries are an extra, without which other commands still work.
        from arrayfn.tools import demo as shown
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("arrayfn"):
            raise
        print(
            f"arrayfn demo needs {error.name}: pip install 'arrayfn[demo]'",
            file=sys.stderr,
        )
        return 2
    return shown.run(chosen.device, chosen.epochs, chosen.plot)


COMMANDS: Final[dict[str, Callable[[Namespace], int]]] = {
    "info": info,
    "cache": cache,
    "explain": explain,
    "compare": compare,
    "bisect": bisect,
    "profile": profile,
    "coverage": coverage,
    "launch": launch,
    "demo": demo,
}


def _target(chosen: Namespace) -> tuple[Callable[..., Any], list[Any]]:
    """Return the function that the command line names, and its arguments.

    With ``--grad`` it is the function's gradient; with ``--zeros`` arguments are zeros.
    Raises ArgumentError if the function does not take that many arguments.
    """
    function = function_of(chosen.function)
    random = np.random.default_rng(0)
    arguments = [argument_of(text, random) for text in chosen.arguments]
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ArgumentError(
            f"{chosen.function}: {error}; name the types of all arguments, as "
            "f32[128,64], after the function"
        ) from None
    except ValueError:
        pass  # a function compiled from C, whose parameters are not known
    if chosen.zeros:
        arguments = [x * 0 for x in arguments]
    return (grad(function) if chosen.grad else function), arguments


def function_of(name: str) -> Callable[..., Any]:
    """Return the function ``module:name`` or ``file.py:name``, after importing it.

    Raises ArgumentError if there is none.
    """
    where, _, what = name.rpartition(":")
    if not where or not what:
        raise ArgumentError(
            f"{name!r} names no function; write module:function or file.py:function"
        )
    try:
        module = _module(where)
        value: Any = module
        for part in what.split("."):
            value = getattr(value, part)
    except (ImportError, OSError) as error:
        raise ArgumentError(f"{where} cannot be imported: {error}") from error
    except AttributeError:
        raise ArgumentError(f"{where} defines no {what}") from None
    if not callable(value):
        raise ArgumentError(f"{name} is a {type(value).__name__}, not a function")
    return value


def _module(where: str) -> Any:
    """Import the module ``where``, a dotted name or the path of a file.

    Modules may be in the current directory. A file becomes the module of its stem.
    """
    if not where.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(where)
    file = Path(where)
    specification = importlib.util.spec_from_file_location(file.stem, file)
    if specification is None or specification.loader is None or not file.is_file():
        raise ArgumentError(f"there is no file {file}")
    module = importlib.util.module_from_spec(specification)
    sys.modules[file.stem] = module
    specification.loader.exec_module(module)
    return module


def argument_of(text: str, random: np.random.Generator) -> Any:
    """Return the argument that ``text`` describes: random numbers or a number.

    >>> argument_of("i32[3]", np.random.default_rng(0)).dtype, argument_of("2.5", None)
    (dtype('int32'), 2.5)
    """
    match = _TYPE.fullmatch(text)
    if match is None:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        raise ArgumentError(f"{text!r} is neither a type, as f32[128,64], nor a number")
    dtype = dtypes.BY_SHORT_NAME.get(match[1])
    if dtype is None:
        raise ArgumentError(
            f"{text!r}: there is no dtype {match[1]!r}; there are "
            f"{', '.join(dtypes.BY_SHORT_NAME)}"
        )
    shape = tuple(int(n) for n in match[2].split(",") if n)
    if dtype in dtypes.INEXACT:
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0, 2 if dtype == dtypes.bool_ else 10, shape).astype(dtype)
