"""The facts of the reference: what a function takes and gives, found by calling it.

An example is a call such as ``anp.exp(np.array([0.0, 1.0]))``. Its arrays are replaced
by others, of each dtype, of other shapes, and by strings, and what comes of that is
said in a sentence each. Nothing is computed but the example: types are enough.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import scipy

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import documentation
from arrayfn.scipy import stats

ROOT: Final = Path(__file__).parents[1]
NAMES: Final = {"np": np, "af": af, "anp": anp}
DISTRIBUTIONS: Final = sorted(
    f"arrayfn.scipy.stats.{name}"
    for name, value in vars(stats).items()
    if inspect.ismodule(value) and hasattr(value, "__all__")
)
NAMESPACES: Final = (
    "arrayfn",
    "arrayfn.numpy",
    "arrayfn.numpy.linalg",
    "arrayfn.numpy.fft",
    "arrayfn.lax",
    "arrayfn.lax.linalg",
    "arrayfn.nn",
    "arrayfn.nn.initializers",
    "arrayfn.random",
    "arrayfn.optim",
    "arrayfn.ode",
    "arrayfn.sparse",
    "arrayfn.scipy.cluster.vq",
    "arrayfn.scipy.fft",
    "arrayfn.scipy.integrate",
    "arrayfn.scipy.interpolate",
    "arrayfn.scipy.linalg",
    "arrayfn.scipy.ndimage",
    "arrayfn.scipy.signal",
    "arrayfn.scipy.sparse",
    "arrayfn.scipy.sparse.linalg",
    "arrayfn.scipy.spatial.transform",
    "arrayfn.scipy.special",
    "arrayfn.scipy.stats",
    *DISTRIBUTIONS,
    "arrayfn.sharding",
    "arrayfn.distributed",
    "arrayfn.image",
    "arrayfn.ops",
    "arrayfn.flatten_util",
    "arrayfn.test_util",
    "arrayfn.tree",
    "arrayfn.tree_util",
    "arrayfn.debug",
    "arrayfn.checkpoint_policies",
    "arrayfn.ad_checkpoint",
    "arrayfn.checkify",
)
_COPY: Final = "it returns a changed copy"
DIFFERENT: Final = {
    "fill_diagonal": _COPY,
    "place": _COPY,
    "put": _COPY,
    "put_along_axis": _COPY,
    "polydiv": "leading zeros of the remainder stay",
}
KINDS: Final = {
    "floats": ("float16", "float32", "float64"),
    "complex numbers": ("complex64", "complex128"),
    "integers (int32, int64)": ("int32", "int64"),
    "bools": ("bool",),
}
KINDS_OF_SCIPY: Final = {"floats": ("float32", "float64"), "integers": ("int64",)}


_ROLE: Final = re.compile(r":\w+:`([^`]*)`")  # Sphinx's, in docstrings of NumPy's
_SAME_SHAPE: Final = "The result has the shape of the argument."
_KEPT: Final = "keep their dtype"
_SAME_DTYPE: Final = "The result has the dtype of the arguments"


@dataclass(frozen=True)
class Public:
    """A public name: where it is, and what it stands for."""

    namespace: str
    name: str
    value: Any

    @property
    def path(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def doc(self) -> str:
        """The docstring, with the entry of the name where that is not part of it."""
        own = inspect.getdoc(self.value) or ""
        if getattr(self.value, "__module__", "") == "builtins":  # such as tuple
            own = ""
        if documented(self.value):
            return own
        paragraphs = own.split("\n\n")
        said = (each for each in paragraphs if not each.startswith(f"{self.name}("))
        summary = _ROLE.sub(r"``\1``", next(said, ""))
        return f"{summary}\n\n{entry_of(self.namespace, self.name)}".strip()


def documented(value: Any) -> bool:
    """Whether ``value`` has a docstring of arrayfn's."""
    return getattr(value, "__module__", "arrayfn").startswith("arrayfn")


def entry_of(namespace: str, name: str) -> str:
    short = namespace.removeprefix("arrayfn.")
    if not (documentation.FOLDER / f"{short}.txt").exists():
        return ""
    return documentation.entries(short).get(name, "")


def names_of(module: ModuleType) -> list[str]:
    """``__all__``, or the public functions and classes that are defined there."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", None) == module.__name__
    ]


def public_names(namespaces: Iterable[str] = NAMESPACES) -> list[Public]:
    """All functions and classes of the namespaces, each in the first that has it."""
    found: dict[int, Public] = {}
    for namespace in namespaces:
        module = importlib.import_module(namespace)
        for name in names_of(module):
            value = getattr(module, name)
            if callable(value) and not inspect.ismodule(value):
                found.setdefault(id(value), Public(namespace, name, value))
    return list(found.values())


# Pages.

DIRECTIVE: Final = re.compile(
    r"^::: (?P<module>[\w.]+)(?P<split> by module)?(?P<further> further)?\n"
    r"(?:    .*\n)*?(?:    +members: \[(?P<members>[^\]]*)\]\n)?(?:    .*\n)*",
    re.MULTILINE,
)
"""A line that stands for the names of a module in a page, with those that it shows."""


def shown_by(directive: re.Match[str]) -> list[tuple[str, Any]]:
    """The names that a directive shows, with their values."""
    if directive["further"]:
        return further(directive["module"])
    module = importlib.import_module(directive["module"])
    names = names_of(module)
    if directive["members"] is not None:
        names = [name.strip() for name in directive["members"].split(",")]
    found = [(name, getattr(module, name)) for name in names]
    return [(name, value) for name, value in found if not inspect.ismodule(value)]


def shown_on_pages(also_further: bool = False) -> set[int]:
    """The identities of the values that pages show, by name or ``further``."""
    return {
        id(value)
        for page in sorted((ROOT / "docs").glob("*.md"))
        for found in DIRECTIVE.finditer(page.read_text(encoding="utf-8"))
        if also_further or not found["further"]
        for _, value in shown_by(found)
    }


def further(namespace: str) -> list[tuple[str, Any]]:
    """The names of a namespace that no other directive shows, with their values."""
    shown = shown_on_pages()
    return [
        (each.name, each.value)
        for each in public_names()
        if each.namespace == namespace and id(each.value) not in shown
    ]


# Facts.


def facts(public: Public, call: str) -> list[str]:
    """Sentences about the function in the example ``call``, where it is one call."""
    found = [_source(public), _sample(public)]
    parsed = ast.parse(call, mode="eval").body if "\n" not in call else None
    if isinstance(parsed, ast.Call) and _value(parsed.func) is public.value:
        kinds = KINDS_OF_SCIPY if ".scipy." in public.namespace else KINDS
        probe = _Probe(public.value, parsed, kinds)
        if probe.arrays:
            found.append(probe.shapes())
        if probe.arrays and public.namespace != "arrayfn.scipy.stats":
            found += ["" if probe.nested else probe.dtypes(), probe.errors()]
    if found[2:4] == [_SAME_SHAPE, f"{_SAME_DTYPE}."]:
        found[2:4] = [_SAME_SHAPE.replace("shape", "shape and dtype")]
    return [sentence for sentence in found if sentence]


def _value(node: ast.expr) -> Any:
    return eval(compile(ast.Expression(node), "example", "eval"), dict(NAMES))


def _source(public: Public) -> str:
    """The function of NumPy's or SciPy's that has the same name."""
    theirs: Any = scipy if ".scipy." in public.namespace else np
    if theirs is np and not public.namespace.startswith("arrayfn.numpy"):
        return ""
    path = [*public.namespace.split(".")[2:], public.name]
    value = theirs
    for part in path:
        value = getattr(value, part, None)
    if value is None or inspect.isclass(public.value):
        return ""
    name = ".".join([theirs.__name__, *path])
    if why := DIFFERENT.get(public.name):
        return f"Like ``{name}``, but {why}."
    return f"The same as ``{name}``."


def _sample(public: Public) -> str:
    """The shape and dtype of random numbers, where the docstring tells no shape."""
    if public.namespace != "arrayfn.random":
        return ""
    parameters = dict(inspect.signature(public.value).parameters)
    asked = {name: parameters.pop(name, None) for name in ("key", "shape", "dtype")}
    own = inspect.getdoc(inspect.unwrap(public.value)) or ""
    if None in asked.values() or "shape" in own.split("The result has ``shape``")[0]:
        return ""
    of_parameters = asked["shape"].default is None
    given = [2.0] * sum(
        p.default is inspect.Parameter.empty for p in parameters.values()
    )
    if of_parameters:
        by_default = "by default the common shape of the parameters"
        vectors = [np.full((3, 1), 2.0), *[np.full(4, 2.0)] * (len(given) - 1)]
        given = vectors[: len(given)]
    elif given:
        return ""
    else:
        by_default = "by default ()"

    def drawn(shape: tuple[int, ...] | None) -> Any:
        options = {} if shape is None else {"shape": shape}
        return public.value(af.random.key(0), *given, **options)

    alone, several = drawn(None), drawn((2, 3, 4))
    assert several.shape == (2, 3, 4), public.path
    assert alone.shape == np.broadcast_shapes(*map(np.shape, given)), public.path
    return f"The result has ``shape``, {by_default}, and is {alone.dtype} by default."


class _Probe:
    """A function with the arguments of an example, whose arrays can be replaced."""

    def __init__(
        self,
        function: Callable[..., Any],
        call: ast.Call,
        kinds: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.function = function
        self.kinds = kinds
        self.arguments = [_value(node) for node in call.args]
        self.options = {each.arg or "": _value(each.value) for each in call.keywords}
        self.arrays = [
            k for k, value in enumerate(self.arguments) if isinstance(value, np.ndarray)
        ]
        others = [
            value for value in self.arguments if not isinstance(value, np.ndarray)
        ]
        self.nested = any(
            isinstance(leaf, np.ndarray) for leaf in af.tree.leaves(others)
        )

    def types(self, replace: Callable[[int, Any], Any]) -> list[Any] | Exception:
        """The types of the results with each array replaced, or the error."""
        arguments = list(self.arguments)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            arrays = [replace(n, arguments[k]) for n, k in enumerate(self.arrays)]

        def call(*given: Any) -> Any:
            for k, value in zip(self.arrays, given, strict=True):
                arguments[k] = value
            return self.function(*arguments, **self.options)

        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                try:
                    found = af.eval_shape(call, *arrays)
                except af.errors.AbstractValueError:  # shapes follow from values
                    found = call(*arrays)
            except Exception as error:  # noqa: BLE001
                return error
        return [leaf for leaf in af.tree.leaves(found) if hasattr(leaf, "dtype")]

    def shapes(self) -> str:
        """Whether shapes are kept or broadcast; else those of the example."""
        count = len(self.arrays)
        given = [self.arguments[k] for k in self.arrays]

        def resized(*shapes: tuple[int, ...]) -> Any:
            found = self.types(lambda n, x: np.ones(shapes[n % len(shapes)], x.dtype))
            return found if isinstance(found, Exception) else [t.shape for t in found]

        if resized((2, 3)) == [(2, 3)] and resized((4,)) == [(4,)]:
            if count == 1:
                return _SAME_SHAPE
            if resized((3, 1), (4,)) == [(3, 4)]:
                return "Shapes broadcast."
            return "All arguments and the result have the same shape."
        found = self.types(lambda n, x: x)
        if isinstance(found, Exception) or not found:
            return ""
        before = ", ".join(_shape(x) for x in given)
        return f"Shapes: {before} -> {', '.join(_shape(t) for t in found)}."

    def converted(self, *positions: int) -> Callable[[str], list[Any] | Exception]:
        """The types of the results, with arrays at ``positions`` of another dtype."""
        return lambda dtype: self.types(
            lambda n, x: x.astype(dtype) if n in positions else x
        )

    def dtypes(self) -> str:
        """What becomes of each kind of dtype, of arrays other than indices."""
        every = range(len(self.arrays))
        indices = {
            n
            for n in every
            if self.arguments[self.arrays[n]].dtype.kind in "ib"
            and isinstance(self.converted(n)("float64"), Exception)
        }
        others = [n for n in every if n not in indices] or every
        types = self.converted(*others)
        said: dict[str, list[str]] = {}
        for kind, names in self.kinds.items():
            found = [types(name) for name in names]
            said.setdefault(_change(names, found), []).append(kind)
        if "" in said:
            return ""
        accepted = [change for change in said if change != "are refused"]
        if not accepted:
            return ""
        if len(accepted) == 1:
            refused = said.get("are refused", [])
            but = f" {_sentence(f'{_list(refused)} are refused')}" if refused else ""
            has = accepted[0].replace("give floats", "The result has floats")
            result = has.replace("give ", "The result is ")
            return f"{_SAME_DTYPE if result == _KEPT else result}.{but}"
        if set(accepted) == {"give bool", _KEPT} and said[_KEPT] == ["bools"]:
            return "The result is bool."
        return " ".join(
            _sentence(f"{_list(kinds)} {change}") for change, kinds in said.items()
        )

    def errors(self) -> str:
        """The errors for shapes, axes and dtypes that do not fit."""
        cases: list[tuple[str, Any]] = []
        if len(self.arrays) > 1:
            other = self.types(lambda n, x: np.ones((n + 5, n + 3, n + 7), x.dtype))
            cases.append(("incompatible shapes", other))
        if "axis" in inspect.signature(self.function).parameters:
            before = self.options
            self.options = {**before, "axis": 9}
            cases.append(("an axis out of range", self.types(lambda n, x: x)))
            self.options = before
        cases.append(("strings", self.types(lambda n, x: x.astype(str))))
        said = [
            f"``{type(found).__name__}`` for {case}"
            for case, found in cases
            if isinstance(found, af.errors.ArrayfnError | ValueError | TypeError)
        ]
        return f"Raises {_list(said)}." if said else ""


def _shape(value: Any) -> str:
    return (
        "(" + ", ".join(map(str, value.shape)) + ("," * (len(value.shape) == 1)) + ")"
    )


def _change(names: tuple[str, ...], found: list[Any]) -> str:
    """What becomes of dtypes ``names``; empty if that is no simple rule."""
    if all(isinstance(each, Exception) for each in found):
        return "are refused"
    if any(isinstance(each, Exception) or not each for each in found):
        return ""
    results = [[str(t.dtype) for t in each] for each in found]
    if all(set(each) == {name} for name, each in zip(names, results, strict=True)):
        return _KEPT
    if len({tuple(each) for each in results}) == 1 and len(set(results[0])) == 1:
        return f"give {results[0][0]}"
    parts = [np.empty(0, name).real.dtype.name for name in names]
    if all(set(each) == {part} for part, each in zip(parts, results, strict=True)):
        return "give floats of the same precision"
    return ""


def _list(parts: Iterable[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


# Entries.


def code_of(entry: str) -> str:
    """The code of an entry's example, without prompts."""
    lines = re.findall(r"^(?:>>>|\.\.\.) (.*)$", entry, re.MULTILINE)
    return "\n".join(lines)


def _prompted(code: str) -> list[str]:
    """The lines of ``code`` with the prompts of Python's command line."""
    starts = {
        min(
            [
                node.lineno,
                *(each.lineno for each in getattr(node, "decorator_list", [])),
            ]
        )
        for node in ast.parse(code).body
    }
    lines = enumerate(code.split("\n"), 1)
    return [f"{'>>>' if k in starts else '...'} {line}" for k, line in lines]


def shown(code: str) -> str:
    """What Python shows for the last line of ``code``."""
    *statements, last = ast.parse(code).body
    names: dict[str, Any] = dict(NAMES)
    printed, value = io.StringIO(), None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module(statements, []), "example", "exec"), names)
            if isinstance(last, ast.Expr):
                expression = ast.Expression(last.value)
                value = eval(compile(expression, "example", "eval"), names)
            else:
                exec(compile(ast.Module([last], []), "example", "exec"), names)
    if printed.getvalue():
        return printed.getvalue().rstrip()
    return "" if value is None else repr(value)


def entry(public: Public, code: str) -> str:
    """The entry of a function, from its name and the code of its example."""
    said = textwrap.fill(" ".join(facts(public, code)), 84)
    prompts = _prompted(code)
    result = shown(code)
    assert "\n\n" not in result, f"{public.path}: empty lines separate entries"
    return "\n".join(filter(None, [public.name, said, *prompts, result]))
