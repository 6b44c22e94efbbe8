"""A kernel's text as the Python function that Numba compiles.

The text of a printed kernel is never executed: it may come from a saved function. The
code of its function is taken out of the compiled text, and given the names that the
text imports from arrayfn's own vocabularies.
"""

from __future__ import annotations

import ast
import gc
import linecache
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from arrayfn.backends.numba.dialect import UntypedKernelError

Function = Callable[..., None]


def printed_function(
    source: str, name: str, vocabularies: Mapping[str, ModuleType]
) -> Function:
    """Make the function ``name`` from a kernel's text, without executing the text.

    The text may have only function definitions, and imports from ``vocabularies``, the
    allowed modules by name. The function's globals are these functions, the imported
    names, ``range`` and ``bool``. Raises UntypedKernelError if the text has anything
    else.
    """
    filename = f"<arrayfn kernel {name}>"
    tree = ast.parse(source, filename)
    names: dict[str, Any] = {"__builtins__": {"range": range, "bool": bool}}
    for node in tree.body:
        match node:
            case ast.ImportFrom(module=str(module)) if module in vocabularies:
                for alias in node.names:
                    known = getattr(vocabularies[module], alias.name, None)
                    if known is None:
                        raise UntypedKernelError(ast.unparse(node))
                    names[alias.asname or alias.name] = known
            case ast.FunctionDef(decorator_list=[] | [ast.Name("device_function")]):
                pass
            case _:
                raise UntypedKernelError(ast.unparse(node))
    # The code objects of functions are constants of the module's code.
    module = compile(tree, filename, "exec", dont_inherit=True)
    for code in module.co_consts:
        if isinstance(code, CodeType):
            names[code.co_name] = FunctionType(code, names)
    if name not in names:
        raise UntypedKernelError(f"there is no function {name}")
    return names[name]


def executed_function(source: str, name: str) -> Function:
    """Execute the ``source`` of a hand-written kernel and return its function ``name``.

    The source is entered in ``linecache``, so tracebacks and debuggers show its lines.
    """
    filename = f"<arrayfn kernel {name}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    namespace: dict[str, Any] = {"__name__": f"arrayfn_kernel_{name}"}
    exec(compile(source, filename, "exec"), namespace)
    return namespace[name]


@contextmanager
def no_garbage_collection() -> Generator[None, None, None]:
    """Suspend garbage collection inside of a ``with`` block or a decorated function.

    Numba makes thousands of objects for a kernel, all of them in use until the end:
    collections would only take time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
