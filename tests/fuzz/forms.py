"""Lines as text with places: ``anp.cumsum({x}, axis={axis})``.

What is put in a place:

* ``{x}`` a value, the same throughout; ``{y}`` one of its type; ``{z}`` one that
  broadcasts with it, or a number;
* ``{k}`` an axis of ``x``, ``{a}`` the same axis counted from the first, ``{n}`` its
  extent; ``{axis}`` that axis or None; ``{axes}`` None, an axis or several;
* ``{dtype}`` its dtype, ``{literal}`` a number of it;
* ``{-1..2}`` an integer between these, both included;
* ``{sum|mean|max}`` one of these texts, which may have places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from tests.fuzz.generator import Draw, NotDrawnError, step

PLACE: Final = re.compile(r"\{([^{}]*)\}")


def form(
    family: str,
    weight: float,
    kinds: str | Sequence[str],
    low: int,
    *texts: str,
    high: int = 9,
    is_long: bool = False,
) -> None:
    """Register lines of a value of these kinds, of ``low`` to ``high`` axes.

    Those of long kernels are drawn where there is a compiler.
    """
    chosen = (kinds,) if isinstance(kinds, str) else kinds

    def drawn(d: Draw) -> str:
        if is_long and not d.has_compiler:
            raise NotDrawnError
        text = d.choice(texts)
        return filled_in(d, text, d.pick(d.choice(chosen), low, high))

    step(family, weight)(drawn)


def filled_in(d: Draw, text: str, x: str) -> str:
    """``text`` with what its places ask for."""
    known = d.known[x]
    k = d.axis(x) if known.ndim else 0
    places: dict[str, Callable[[], object]] = {
        "x": lambda: x,
        "y": lambda: d.of(known.shape, known.dtype),
        "z": lambda: d.companion(x),
        "k": lambda: k,
        "a": lambda: k % max(known.ndim, 1),
        "n": lambda: known.shape[k] if known.ndim else 1,
        "axis": lambda: k if known.ndim and d.chance(0.7) else None,
        "axes": lambda: d.axes(x),
        "dtype": lambda: repr(known.dtype),
        "literal": lambda: d.literal(known.dtype),
    }

    def put(found: re.Match[str]) -> str:
        name = found[1]
        if name in places:
            return str(places[name]())
        low, dots, high = name.partition("..")
        if dots and high:
            return str(d.integer(int(low), int(high)))
        return d.choice(name.split("|"))

    while PLACE.search(text):
        text = PLACE.sub(put, text)
    return text
