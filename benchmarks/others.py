"""Columns for comparison where another library says the same thing in a line or two."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from benchmarks.cases import Case

Column = dict[str, Callable[..., Any]]


def columns(case: Case, inputs: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    """Ready calls of other libraries for ``case``, by the library's name."""
    calls: dict[str, Callable[[], Any]] = {}
    for name, table in (("numexpr", _numexpr), ("torch", _torch)):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        functions = table(module)
        if function := functions.get(case.group):
            put = getattr(module, "from_numpy", None)
            arguments = tuple(map(put, inputs)) if put else inputs
            calls[name] = lambda f=function, a=arguments: f(*a)
    return calls


def _numexpr(numexpr: Any) -> Column:
    def chain(x: Any, y: Any) -> Any:
        return numexpr.evaluate("(x * 2 + y) * x - y / 2", {"x": x, "y": y})

    def chain_math(x: Any, y: Any) -> Any:
        text = "exp(-x * x) * tanh(y) + where(y > 0, x, y / 2)"
        return numexpr.evaluate(text, {"x": x, "y": y})

    return {"chain": chain, "chain_math": chain_math}


def _torch(torch: Any) -> Column:
    def layernorm(x: Any, scale: Any, shift: Any) -> Any:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], scale, shift)

    return {
        "chain": lambda x, y: (x * 2.0 + y) * x - y * 0.5,
        "softmax": lambda x: torch.softmax(x, -1),
        "layernorm": layernorm,
        "transposed_add": lambda x, y: x + y.T,
    }
