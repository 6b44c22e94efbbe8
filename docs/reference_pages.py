"""The reference pages, from the functions themselves: a hook of MkDocs.

A line ``::: arrayfn.random`` in a page stands for all public names of a module, and an
indented list ``members: [...]`` below it for some. Each name is shown once on a page,
with its signature (parameters, types, defaults) and its docstring, whose examples
become code. ``::: arrayfn.numpy by module`` stands for a table of links to pages that
are made here, one for each module that defines some of the names, so that no page is
too long to read.
"""

from __future__ import annotations

import ast
import builtins
import enum
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef

sys.path.insert(0, str(Path(__file__).parents[1]))

from mkdocs.structure.files import File, Files

from tests import reference

_EXAMPLE = re.compile(r"(^>>> .*\n(?:^(?!\s*$).*\n)*)", re.MULTILINE)
_SECTION = re.compile(
    r"^(Args|Arguments|Attributes|Returns|Raises|Yields):\n"
    r"((?:[ ]{4}.*(?:\n|\Z)|\n(?=[ ]{4}))+)",
    re.MULTILINE,
)
_ITEM = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): ")
_LIBRARY = re.compile(r"``((?:numpy|scipy)\.[\w.]+)``")
_OTHERS = "other_names"
_SITES = {
    "numpy": "https://numpy.org/doc/stable/reference/generated/{}.html",
    "scipy": "https://docs.scipy.org/doc/scipy/reference/generated/{}.html",
}


@cache
def _paths() -> dict[int, str]:
    """The public path of each value, by its identity."""
    return {id(each.value): each.path for each in reference.public_names()}


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each module of a namespace that is shown by module."""
    for file in list(files.documentation_pages()):
        page = Path(config["docs_dir"], file.src_uri)
        if not page.exists():
            continue
        for found in reference.DIRECTIVE.finditer(page.read_text(encoding="utf-8")):
            if found["split"]:
                for name, names in _by_module(found["module"]).items():
                    text = _module_page(found["module"], name, names)
                    uri = _uri(found["module"], name)
                    files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the directives of a page."""
    entries: set[str] = set()
    return reference.DIRECTIVE.sub(lambda found: _expanded(found, entries), markdown)


def _expanded(found: re.Match[str], entries: set[str]) -> str:
    """What a directive stands for, less the ``entries`` above it, which it extends."""
    if found["split"]:
        return _table(importlib.import_module(found["module"])) + "\n"
    shown = [_shown(found["module"], *each) for each in reference.shown_by(found)]
    new = [entry for entry in shown if entry not in entries]
    entries.update(new)
    return "\n\n".join(new) + "\n"


# Names of a namespace, by the module that defines them.


def _by_module(namespace: str) -> dict[str, list[str]]:
    module = importlib.import_module(namespace)
    found: dict[str, list[str]] = {}
    for name in reference.names_of(module):
        value = getattr(module, name)
        if inspect.ismodule(value):
            continue
        home = getattr(value, "__module__", None) or ""
        part = home.removeprefix(namespace + ".").split(".")[0]
        known = home.startswith(namespace + ".") and callable(value)
        found.setdefault(part if known else _OTHERS, []).append(name)
    return dict(sorted(found.items()))


def _uri(namespace: str, module: str) -> str:
    return f"reference/{namespace.removeprefix('arrayfn.')}-{module}.md"


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _module_page(namespace: str, module: str, names: list[str]) -> str:
    values = importlib.import_module(namespace)
    entries = [_shown(namespace, name, getattr(values, name)) for name in names]
    heading = f"# {namespace}: {_title(module).lower()}"
    return "\n\n".join([heading, _subject(namespace, module), *entries])


def _subject(namespace: str, module: str) -> str:
    """The first line of the docstring of a module that defines public names."""
    if module == _OTHERS:
        return "NumPy's own names, and constants."
    doc = inspect.getdoc(importlib.import_module(f"{namespace}.{module}")) or ""
    return _with_powers(doc.partition("\n")[0].replace("``", "`"))


def _table(module: ModuleType) -> str:
    lines = []
    for part, names in _by_module(module.__name__).items():
        page = _uri(module.__name__, part)
        lines += [f"\n### [{_title(part)}]({page})\n", "| Name | |", "| --- | --- |"]
        for name in names:
            public = reference.Public(module.__name__, name, getattr(module, name))
            lines.append(f"| [`{name}`]({page}#{public.path}) | {_summary(public)} |")
    return "\n".join(lines)


def _summary(public: reference.Public) -> str:
    if not callable(public.value):
        return f"`{public.value!r}`" if isinstance(public.value, float) else ""
    first = public.doc.partition("\n\n")[0]
    return _with_powers(" ".join(first.split()).replace("``", "`")).replace("|", "\\|")


# One name.


def _shown(namespace: str, name: str, value: Any, level: int = 3) -> str:
    path = _paths().get(id(value), f"{namespace}.{name}")
    here = path
    if namespace in reference.NAMESPACES:
        here = f"{namespace}.{name}"
    title = name.replace("_", r"\_")
    heading = f"{'#' * level} {title} {{#{_anchor(here)}}}"
    if here != path and callable(value):
        return f"{heading}\n\nAnother name of `{path}`."
    if not callable(value):
        return f"{heading}\n\n{_constant(here, value)}"
    parts = [heading]
    if signature := _signature(name, value):
        parts.append(f"```py\n{signature}\n```")
    own_namespace, _, own_name = path.rpartition(".")
    doc = reference.Public(own_namespace, own_name, value).doc
    parts.append(
        _markdown(with_imports(own_namespace, doc, _home(own_namespace, value)))
    )
    if inspect.isclass(value) and reference.documented(value):
        parts += [_method(path, *each) for each in _methods(value)]
    return "\n\n".join(part for part in parts if part)


def _anchor(path: str) -> str:
    """A path as an attribute of a heading, where ``__`` would begin bold text."""
    return path.replace("__", r"\_\_")


def _constant(path: str, value: Any) -> str:
    """What a name that is no function stands for: by its class, if that is more."""
    if isinstance(value, dict):
        return f"A dict with the keys {', '.join(f'`{key!r}`' for key in value)}."
    if type(value).__module__ in ("builtins", "types"):
        return f"`{path}` is `{value!r}`."
    doc = inspect.getdoc(type(value)) or ""
    if not reference.documented(type(value)):
        return doc.partition("\n\n")[0]
    namespace = path.rpartition(".")[0]
    return _markdown(with_imports(namespace, doc, type(value).__module__))


def _home(namespace: str, value: Any) -> str:
    """The module that defines ``value``, if it is one of arrayfn's."""
    home = getattr(value, "__module__", None) or ""
    return home if home.startswith("arrayfn") else namespace


def with_imports(namespace: str, doc: str, home: str) -> str:
    """A docstring whose examples import the names that they use without their module.

    ``home`` is the module that defines what is documented: the examples run there.
    """
    example = _EXAMPLE.search(doc + "\n")
    if not example:
        return doc
    lines = []
    known = {*dir(builtins)} - {*vars(importlib.import_module(home))}
    used = free_names(reference.code_of(doc), known)
    for source in dict.fromkeys([namespace, "arrayfn"]):
        module = importlib.import_module(source)
        if found := sorted(each for each in used if hasattr(module, each)):
            lines.append(f">>> from {source} import {', '.join(found)}\n")
            used.difference_update(found)
    return doc[: example.start()] + "".join(lines) + doc[example.start() :]


def free_names(code: str, known: set[str]) -> set[str]:
    """The names that ``code`` uses and does not bind, less those that are ``known``."""
    bound = {*known, *reference.NAMES}
    loaded = set()
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(id=each, ctx=ast.Load()):
                loaded.add(each)
            case ast.Name(id=each) | ast.arg(arg=each):
                bound.add(each)
            case ast.FunctionDef(name=each) | ast.ClassDef(name=each):
                bound.add(each)
            case ast.alias(name=each, asname=other):
                bound.add(other or each.partition(".")[0])
            case _:
                pass
    return loaded - bound


def _method(path: str, name: str, value: Any) -> str:
    signature = _signature(name, value)
    doc = _markdown(inspect.getdoc(value) or "")
    code = f"```py\n{signature}\n```\n\n" if signature else ""
    title = f"{path}.{name}"
    return f"#### {name} {{#{_anchor(title)}}}\n\n{code}{doc}"


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(cls).items():
        value = getattr(value, "__func__", value)
        is_shown = inspect.isfunction(value) or isinstance(value, property)
        if is_shown and not name.startswith("_") and inspect.getdoc(value):
            yield name, value


def _signature(name: str, value: Any) -> str:
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return ""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    plain = [
        p.replace(default=_default(p.default), annotation=_type(p.annotation))
        for p in found.parameters.values()
    ]
    result = _type(found.return_annotation)
    text = f"{name}{found.replace(parameters=plain, return_annotation=result)}"
    if len(text) <= 88:
        return text
    inside = ",\n    ".join(_with_marks(plain))
    arrow = "" if result is inspect.Signature.empty else f" -> {result!r}"
    return f"{name}(\n    {inside},\n){arrow}"


def _with_marks(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """The parameters as text, with the marks ``/`` and ``*`` between their kinds."""
    before = None
    for parameter in parameters:
        kind = parameter.kind
        if before == kind.POSITIONAL_ONLY != kind:
            yield "/"
        if kind == kind.KEYWORD_ONLY and before not in (kind, kind.VAR_POSITIONAL):
            yield "*"
        yield str(parameter)
        before = kind
    if before == inspect.Parameter.POSITIONAL_ONLY:
        yield "/"


class _Text:
    """What is shown as it stands, without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _default(value: Any) -> Any:
    """A default as it is written in a call."""
    if value is inspect.Parameter.empty:
        return value
    text = repr(value)
    return _Text("..." if value is ... or text.startswith("<") else text)


def _type(annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty:
        return annotation
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if not isinstance(annotation, str):
        annotation = getattr(annotation, "__name__", None) or str(annotation)
    return _Text(annotation)


def _markdown(doc: str) -> str:
    """A docstring as Markdown: examples fenced, functions of libraries linked."""
    parts = _EXAMPLE.split(doc.strip() + "\n")
    for k, part in enumerate(parts):
        if part.startswith(">>>"):
            parts[k] = f"\n```pycon\n{part.strip()}\n```\n"
        else:
            sections = _SECTION.sub(_listed, part.strip())
            text = _LIBRARY.sub(_linked, sections).replace("``", "`")
            parts[k] = "\n".join(map(_with_powers, text.split("\n")))
    return "\n".join(parts).strip()


def _listed(found: re.Match[str]) -> str:
    """A section such as ``Args:`` as a heading and a list with an item per name."""
    lines = []
    for line in textwrap.dedent(found[2]).strip().split("\n"):
        item = _ITEM.match(line)
        if item and item[1] not in ("None", "True", "False"):
            names = ", ".join(f"`{each}`" for each in item[1].split(", "))
            lines.append(f"* {names}: {line[item.end() :]}")
        else:
            lines.append(f"  {line.strip()}" if lines else line.strip())
    return f"__{found[1]}__\n\n" + "\n".join(lines) + "\n"


def _with_powers(line: str) -> str:
    """A line whose ``x**2`` outside of code is no beginning of bold text."""
    if line.startswith("    "):
        return line
    pieces = re.split(r"(`[^`]*`)", line)
    pieces[::2] = [piece.replace("**", r"\*\*") for piece in pieces[::2]]
    return "".join(pieces)


def _linked(found: re.Match[str]) -> str:
    site = _SITES[found[1].partition(".")[0]]
    return f"[`{found[1]}`]({site.format(found[1])})"
