"""Sums, extrema, cumulative sums, sorts, statistics."""

from __future__ import annotations

from typing import Final

from tests.fuzz.forms import form

MIXED: Final = ("f", "f", "f", "bifc", "bifc")
KEPT: Final = "{|||, keepdims=True}"

form(
    *("reduce", 8, MIXED, 0),
    "anp.{sum|sum|mean}({x}, axis={axes}" + KEPT + ")",
    "anp.{sum|mean|max|min|ptp}({x}, axis={axes}" + KEPT + ")",
    "anp.{prod|all|any|std|var}({x}, axis={axes}" + KEPT + ")",
    "anp.{max|min|prod}({{x}|anp.tanh({x})}, axis={axes}" + KEPT + ")",
)
form("reduce", 2, "bif", 0, "{x}.{sum|mean|max|min|prod}({axes})")
form("reduce", 2, "f", 0, "anp.nan{sum|max|min|mean|prod|std|var}({x}, axis={axes})")
form(
    *("reduce", 2, "bif", 1),
    "anp.{argmax|argmin|nanargmax|nanargmin|count_nonzero}({x}, axis={axis})",
)
form(  # the results meet what was reduced
    *("reduce", 2, "f", 1),
    "{x} - anp.mean({x}, axis={k}, keepdims=True)",
    "{x} / (1 + anp.sum(anp.abs({x}), axis={k}, keepdims=True))",
    "anp.max({x}, axis={k}, keepdims=True) - {x}",
    "{x} == anp.max({x}, axis={k}, keepdims=True)",
)
form(
    *("reduce", 1, "f", 0),
    "anp.sum({x}, axis={axes}, where={x} > 0)",
    "anp.max({x}, axis={axes}, where={x} > 0, initial=-9)",
    "anp.min({x}, axis={axes}, where={x} > 0, initial=9)",
)
form("reduce", 1, "f", 1, "anp.average({x}, axis={k})")
form(
    *("reduce", 1, "if", 1),
    "lax.reduce({x}, anp.asarray(0, {dtype}), lax.add, (0,))",
    "np.{add|multiply|maximum}.reduce({x}, axis={k})",
    "lax.reduce_max({x}, (0,))",
)

form(
    *("cumulative", 5, ("if", "if", "if", "if", "bc"), 1),
    "anp.{cumsum|cumsum|nancumsum}({x}, axis={axis})",
    "anp.cumprod(anp.sin({x}), axis={axis})",
    "anp.{cummax|cummin}({x}, axis={k})",
)
form(
    *("cumulative", 2, "f", 1),
    "lax.{cumsum|cummax|cummin|cumlogsumexp|cumprod}"
    "({x}, axis={a}, reverse={True|False})",
)
form("cumulative", 2, "if", 1, "anp.diff({x}, n={1..2}, axis={k})")
form("cumulative", 2, "f", 1, "anp.{gradient|trapezoid}({x}, axis={k})")
form(
    *("cumulative", 1, "f", 1),
    "lax.associative_scan({anp.add|anp.maximum|lambda a, b: a + b}, {x}, axis={a})",
)

form("sorting", 4, "bif", 1, "anp.{sort|argsort}({x}, axis={axis})")
form("sorting", 1, "if", 1, "anp.partition({x}, 0, axis={k})")
form("sorting", 2, "if", 1, "lax.top_k({x}, {1..3})")
form("sorting", 1, "if", 1, "anp.lexsort(({x}, anp.abs({x})))", high=1)
form("sorting", 1, "f", 1, "lax.sort_key_val({x}, 2 * {x})")

form(
    *("statistics", 3, "f", 1),
    "anp.median({x}, axis={axis})",
    "anp.quantile({x}, 0.25, axis={axis})",
)
form("statistics", 1, "f", 2, "anp.{cov|corrcoef}({x}, rowvar={True|False})", high=2)
form("statistics", 1, "f", 1, "anp.histogram({x}, bins={1..4}, range=(-2.0, 2.0))[0]")
form("statistics", 1, "i", 1, "anp.bincount({x} % 4, length=4)", high=1)
form("statistics", 1, "fc", 1, "anp.linalg.norm({x}, axis={k}" + KEPT + ")")
