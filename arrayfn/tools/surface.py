"""arrayfn's public names and parameters beside those of NumPy, SciPy and JAX.

A parameter is here if a call that gives it, by position or by name, or leaves it out,
means the same in arrayfn. What is left out on purpose has a reason in
``arrayfn.tools.left_out``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import field
from fnmatch import fnmatchcase as fnmatch
from inspect import Parameter
from pkgutil import resolve_name
from typing import Any, Final

from arrayfn.records import frozen
from arrayfn.tools.left_out import LEFT_OUT, PARAMETERS_LEFT_OUT, SAME_DEFAULTS
from arrayfn.tools.stored_signatures import (
    Argument,
    Arguments,
    arguments_of,
    stored,
    version,
)

# Each namespace, and arrayfn's counterpart.
NAMESPACES: Final[tuple[tuple[str, str], ...]] = (
    ("array_api", "arrayfn.numpy"),
    ("array_api.array", "arrayfn.tracing:Tracer"),
    ("jax", "arrayfn"),
    ("jax.tree", "arrayfn.tree"),
    ("jax.tree_util", "arrayfn.tree_util"),
    ("jax.custom_batching", "arrayfn.custom_batching"),
    ("jax.debug", "arrayfn.debug"),
    ("jax.image", "arrayfn.image"),
    ("jax.test_util", "arrayfn.test_util"),
    ("jax.numpy", "arrayfn.numpy"),
    ("jax.numpy.linalg", "arrayfn.numpy.linalg"),
    ("jax.numpy.fft", "arrayfn.numpy.fft"),
    ("jax.lax", "arrayfn.lax"),
    ("jax.lax.linalg", "arrayfn.lax.linalg"),
    ("jax.random", "arrayfn.random"),
    ("jax.nn", "arrayfn.nn"),
    ("jax.nn.initializers", "arrayfn.nn.initializers"),
    ("jax.scipy.special", "arrayfn.scipy.special"),
    ("jax.scipy.stats", "arrayfn.scipy.stats"),
    ("jax.scipy.linalg", "arrayfn.scipy.linalg"),
    ("jax.scipy.sparse.linalg", "arrayfn.scipy.sparse.linalg"),
    ("jax.flatten_util", "arrayfn.flatten_util"),
    ("jax.ops", "arrayfn.ops"),
    ("jax.scipy.optimize", "arrayfn.scipy.optimize"),
    ("jax.scipy.integrate", "arrayfn.scipy.integrate"),
    ("jax.scipy.ndimage", "arrayfn.scipy.ndimage"),
    ("jax.scipy.signal", "arrayfn.scipy.signal"),
    ("jax.scipy.interpolate", "arrayfn.scipy.interpolate"),
    ("jax.scipy.fft", "arrayfn.scipy.fft"),
    ("jax.scipy.cluster.vq", "arrayfn.scipy.cluster.vq"),
    ("jax.scipy.spatial.transform", "arrayfn.scipy.spatial.transform"),
)

_ABSENT: Final = object()

# Namespaces of which only the parameters of common functions are compared. arrayfn's
# names are those of the array API and of JAX, which chose among NumPy's and SciPy's.
_LARGER: Final[tuple[tuple[str, str], ...]] = (
    ("numpy", "arrayfn.numpy"),
    ("numpy.linalg", "arrayfn.numpy.linalg"),
    ("numpy.fft", "arrayfn.numpy.fft"),
    *(
        (theirs.removeprefix("jax."), ours)
        for theirs, ours in NAMESPACES
        if theirs.startswith("jax.scipy.")
    ),
)


@frozen(slots=True)
class Counted:
    """Which names of a library's namespace arrayfn has.

    Names may also be of parameters, as ``function.parameter``.

    Attributes:
        theirs: the library's namespace.
        version: the library and its version.
        ours: arrayfn's namespace.
        here: the names that arrayfn has.
        left_out: the names left out on purpose, with reasons.
        missing: all other names.
    """

    theirs: str
    version: str
    ours: str
    here: tuple[str, ...]
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    missing: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """The number of names."""
        return len(self.here) + len(self.left_out) + len(self.missing)


def names_of(namespace: str) -> list[str]:
    """Return the public names of ``namespace``, as stored."""
    return list(stored(namespace))


def compare_names() -> Iterator[Counted]:
    """Yield the comparison of each of ``NAMESPACES`` with arrayfn's names."""
    for theirs, ours in NAMESPACES:
        here = {name: _ours(ours, name) is not _ABSENT for name in names_of(theirs)}
        yield _counted(theirs, ours, here, _patterns(LEFT_OUT, theirs))


def compare_parameters() -> Iterator[Counted]:
    """Yield, by namespace, the comparison of parameters of common functions.

    A parameter that arrayfn's function does not take in the same way has the difference
    in brackets after its name. Functions that arrayfn lacks do not count.
    """
    of_ufuncs = _patterns(PARAMETERS_LEFT_OUT, "ufunc")
    for theirs, ours in (*_LARGER, *NAMESPACES):
        here: dict[str, bool] = {}
        # Reasons for all namespaces, for the library ("numpy.*"), for this namespace.
        patterns = {**_patterns(PARAMETERS_LEFT_OUT, "*")}
        patterns |= _patterns(PARAMETERS_LEFT_OUT, theirs.partition(".")[0] + ".*")
        patterns |= _patterns(PARAMETERS_LEFT_OUT, theirs)
        for name, wanted in stored(theirs).items():
            function = _ours(ours, name)
            own = arguments_of(function) if callable(function) else None
            if wanted is None or own is None:
                continue
            if _is_ufunc(wanted):
                patterns |= {f"{name}.{each}": why for each, why in of_ufuncs.items()}
            gaps = dict(gaps_of(wanted, own))
            for each in wanted:
                text = f"{name}.{each.name}"
                gap = gaps.get(each.name)
                here[f"{text} ({gap})" if gap else text] = gap is None
        if here:
            yield _counted(theirs, ours, here, patterns)


def _is_ufunc(arguments: Arguments) -> bool:
    """Whether these are the parameters of a ufunc of NumPy or SciPy."""
    return {"casting", "subok", "signature"} <= {each.name for each in arguments}


def gaps_of(wanted: Arguments, own: Arguments) -> Iterator[tuple[str, str]]:
    """Yield (parameter of ``wanted``, what ``own`` lacks to take it in the same way).

    A parameter must have the same place if it is given by position, the same name if it
    is given by name, and a default that means the same.

    >>> from arrayfn.tools.stored_signatures import parsed
    >>> dict(gaps_of(parsed("(a, axis=None, *, out=None)"), parsed("(x, axis=0)")))
    {'a': 'by name', 'axis': 'None by default', 'out': 'by name'}
    """
    places = [each for each in own if each.by_position]
    names = {each.name: each for each in own if each.by_name}
    kinds = {each.kind for each in own}
    position = 0
    for each in wanted:
        if each.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            if each.kind not in kinds:
                yield each.name, "any number"
            continue
        mine: Argument | None = None  # the parameter of ``own`` that takes it
        lacks: list[str] = []
        if each.by_position:
            if position < len(places):
                mine = places[position]
            elif Parameter.VAR_POSITIONAL not in kinds:
                lacks.append("by position")
            position += 1
        if each.by_name and each.name in names:
            # Our parameter at this place may have another name, but not the name of
            # another parameter of theirs: the order differs then.
            other = mine is not None and mine.name in {w.name for w in wanted}
            if mine is not None and mine.name != each.name and other:
                lacks.append("by position")
            mine = names[each.name]
        elif each.by_name and Parameter.VAR_KEYWORD not in kinds:
            lacks.append("by name")
        if mine is not None and not _same_default(each, mine):
            lacks.append(f"{each.default} by default")
        if lacks:
            yield each.name, " and ".join(dict.fromkeys(lacks))


def _same_default(theirs: Argument, ours: Argument) -> bool:
    """Whether our default means the same as theirs.

    Defaults are texts: None for a parameter without one, "..." for a value that no text
    stands for. Our "Ellipsis" marks a hint that is accepted and ignored.
    """
    if theirs.default is None or theirs.default == "...":
        return theirs.default is None or ours.default is not None
    if ours.default == "Ellipsis":
        return True
    same = SAME_DEFAULTS.get(theirs.default, ())
    return ours.default == theirs.default or ours.default in same


def _counted(
    theirs: str, ours: str, here: Mapping[str, bool], reasons: dict[str, str]
) -> Counted:
    """Sort the names of namespace ``theirs`` into those that ``ours`` has, and others.

    ``here`` says of each name whether it is in ``ours``. A name may have a note after a
    space, such as "sort.axis (by name)". ``reasons`` maps patterns of names left out on
    purpose to reasons.
    """
    absent = [name for name, is_here in here.items() if not is_here]
    why = {name: _reason(reasons, name.partition(" ")[0]) for name in absent}
    return Counted(
        theirs,
        version(theirs),
        ours,
        tuple(name for name, is_here in here.items() if is_here),
        {name: reason for name, reason in why.items() if reason is not None},
        tuple(name for name, reason in why.items() if reason is None),
    )


def _reason(reasons: dict[str, str], name: str) -> str | None:
    """Return the reason of the first pattern that matches ``name``, or None."""
    matching = (why for pattern, why in reasons.items() if fnmatch(name, pattern))
    return next(matching, None)


def _patterns(table: Mapping[str, Mapping[str, str]], namespace: str) -> dict[str, str]:
    """Map the patterns of names left out of ``namespace`` on purpose to reasons.

    ``table`` has the patterns by namespace and reason, as texts of several words.
    """
    return {
        pattern: reason
        for reason, patterns in table.get(namespace, {}).items()
        for pattern in patterns.split()
    }


def _ours(module: str, name: str) -> Any:
    """Return the attribute ``name`` of ``module``, or of a class "module:Class".

    The name may have dots. Returns _ABSENT if there is none, or if it is a module.
    """
    try:
        value = resolve_name(
            f"{module}.{name}" if ":" in module else f"{module}:{name}"
        )
    except (ImportError, AttributeError):
        return _ABSENT
    return _ABSENT if inspect.ismodule(value) else value
