"""Other libraries' public names and signatures, stored as text files, by namespace.

A file's first line is a comment with the library and its version. The others are public
names, functions with their parameters: ``sum(a, axis=None, *, where=None)``. Defaults
are as ``repr`` writes them, or ``...`` where that is no expression.

    python -m arrayfn.tools.stored_signatures jax.numpy jax.lax

writes the files again, from the libraries that are installed; without arguments, all
files whose library is.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import types
from collections.abc import Iterator
from enum import EnumType
from inspect import Parameter
from pathlib import Path
from typing import Any, Final

from arrayfn.records import frozen

_FOLDER: Final = Path(__file__).parent / "signatures"
_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@frozen(slots=True)
class Argument:
    """A parameter: its name, how it is given, and its default as text.

    ``default`` is None for a parameter without one, "..." for one that has no text.
    """

    name: str
    kind: Any  # inspect's enumeration, which has no public name
    default: str | None

    @property
    def by_position(self) -> bool:
        """Whether the parameter can be given by position."""
        return self.kind in _POSITIONAL

    @property
    def by_name(self) -> bool:
        """Whether the parameter can be given by name."""
        return self.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


Arguments = tuple[Argument, ...]


def arguments_of(function: Any) -> Arguments | None:
    """Return the parameters of an installed function; None if it has no signature.

    Enumerations count as having none: theirs is Python's own, and depends on Python's
    version.
    """
    if isinstance(function, EnumType):
        return None
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    return tuple(
        Argument(p.name, p.kind, None if p.default is p.empty else _text(p.default))
        for p in signature.parameters.values()
    )


def _text(default: Any) -> str:
    """Return a default value as Python source; "..." if it cannot be written so."""
    text = default.__name__ if isinstance(default, type) else repr(default)
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return "..."
    return text


def written(arguments: Arguments) -> str:
    """Write parameters as source: ``(a, /, b=0, *, c=None)``."""
    parts: list[str] = []
    for position, each in enumerate(arguments):
        before = arguments[position - 1].kind if position else None
        if each.kind != before == Parameter.POSITIONAL_ONLY:
            parts.append("/")  # the parameter before was the last positional-only one
        starts = before not in (Parameter.KEYWORD_ONLY, Parameter.VAR_POSITIONAL)
        if each.kind == Parameter.KEYWORD_ONLY and starts:
            parts.append("*")
        stars = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
        default = "" if each.default is None else f"={each.default}"
        parts.append(stars.get(each.kind, "") + each.name + default)
    if arguments and arguments[-1].kind == Parameter.POSITIONAL_ONLY:
        parts.append("/")
    return f"({', '.join(parts)})"


def parsed(text: str) -> Arguments:
    """Parse the text that ``written`` returns."""
    (function,) = ast.parse(f"def f{text}: ...").body
    assert isinstance(function, ast.FunctionDef)
    parameters = function.args
    plain = [(a.arg, Parameter.POSITIONAL_ONLY) for a in parameters.posonlyargs]
    plain += [(a.arg, Parameter.POSITIONAL_OR_KEYWORD) for a in parameters.args]
    # ``defaults`` has those of the last parameters; the ones before have none.
    none = [None] * (len(plain) - len(parameters.defaults))
    result: list[Argument] = []
    for (name, kind), default in zip(plain, [*none, *parameters.defaults], strict=True):
        result.append(Argument(name, kind, default and ast.unparse(default)))
    if parameters.vararg:
        result.append(Argument(parameters.vararg.arg, Parameter.VAR_POSITIONAL, None))
    for a, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
        default_text = default and ast.unparse(default)
        result.append(Argument(a.arg, Parameter.KEYWORD_ONLY, default_text))
    if parameters.kwarg:
        result.append(Argument(parameters.kwarg.arg, Parameter.VAR_KEYWORD, None))
    return tuple(result)


def stored(namespace: str) -> dict[str, Arguments | None]:
    """Return the stored names of ``namespace``, with the parameters of functions.

    A name without parameters has None.
    """
    names: dict[str, Arguments | None] = {}
    for line in _file(namespace).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, bracket, rest = line.partition("(")
            names[name] = parsed(bracket + rest) if bracket else None
    return names


def version(namespace: str) -> str:
    """Return the library and version, such as "jax 0.8", of the stored names."""
    first, *_ = _file(namespace).read_text(encoding="utf-8").splitlines()
    return first.removeprefix("#").strip()


def _file(namespace: str) -> Path:
    """Return the file that stores the names of ``namespace``."""
    return _FOLDER / f"{namespace}.txt"


# Writing.


def public_names(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for the public functions, classes and constants of a module.

    Inner modules are left out, except those of jax.scipy.stats, whose names are
    prefixed by the module (``norm.pdf``).
    """
    for name in sorted(dir(module)):
        value = getattr(module, name)
        if name.startswith("_") or name == "annotations":
            continue
        if not isinstance(value, types.ModuleType):
            yield name, value
        elif module.__name__ == "jax.scipy.stats":
            inner = public_names(value)
            yield from ((f"{name}.{each}", what) for each, what in inner)


def lines(namespace: str) -> Iterator[str]:
    """Yield the lines of the file that stores the names of ``namespace``."""
    module = importlib.import_module(namespace)
    library = importlib.import_module(namespace.partition(".")[0])
    yield f"# {library.__name__} {library.__version__}"
    for name, value in public_names(module):
        arguments = arguments_of(value) if callable(value) else None
        yield name if arguments is None else name + written(arguments)


def main(namespaces: list[str]) -> None:
    """Write the files of ``namespaces``, or without any, all files again.

    Files of libraries that are not installed stay as they are.
    """
    for namespace in namespaces or sorted(path.stem for path in _FOLDER.glob("*.txt")):
        try:
            text = "\n".join(lines(namespace)) + "\n"
        except ModuleNotFoundError as error:
            print(f"{namespace}: left as it is, {error.name} is not installed")
            continue
        _file(namespace).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
