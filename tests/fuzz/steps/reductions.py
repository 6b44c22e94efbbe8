"""Sums, extrema, cumulative sums, sorts, statistics."""

from __future__ import annotations

from tests.fuzz.generator import Draw, step


def options(d: Draw) -> str:
    return ", keepdims=True" if d.chance(0.25) else ""


@step("reduce", 8)
def reduced(d: Draw) -> str:
    names = ["sum", "mean", "max", "min", "prod", "all", "any", "std", "var", "ptp"]
    x = d.pick("bifc" if d.chance(0.4) else "f")
    name = d.choice(names, (8, 4, 4, 3, 2, 1, 1, 2, 2, 1))
    inner = f"anp.tanh({x})" if name == "prod" and d.chance(0.5) else x
    return f"anp.{name}({inner}, axis={d.axes(x)}{options(d)})"


@step("reduce", 2)
def method(d: Draw) -> str:
    x = d.pick("bif")
    return f"{x}.{d.choice(['sum', 'mean', 'max', 'min', 'prod'])}({d.axes(x)})"


@step("reduce", 2)
def nan_aware(d: Draw) -> str:
    x = d.pick("f")
    names = ["nansum", "nanmax", "nanmin", "nanmean", "nanprod", "nanstd", "nanvar"]
    return f"anp.{d.choice(names)}({x}, axis={d.axes(x)})"


@step("reduce", 2)
def places(d: Draw) -> str:
    x = d.pick("bif", 1)
    name = d.choice(["argmax", "argmin", "nanargmax", "nanargmin", "count_nonzero"])
    axis = d.choice(["None", str(d.axis(x))])
    return f"anp.{name}({x}, axis={axis})"


@step("reduce", 2)
def centred(d: Draw) -> str:
    """Reductions whose results meet what was reduced."""
    x = d.pick("f", 1)
    axis = d.axis(x)
    return d.choice(
        [
            f"{x} - anp.mean({x}, axis={axis}, keepdims=True)",
            f"{x} / (1 + anp.sum(anp.abs({x}), axis={axis}, keepdims=True))",
            f"anp.max({x}, axis={axis}, keepdims=True) - {x}",
            f"{x} == anp.max({x}, axis={axis}, keepdims=True)",
        ]
    )


@step("reduce", 1)
def with_where(d: Draw) -> str:
    x = d.pick("f")
    name, initial = d.choice(
        [("sum", ""), ("max", ", initial=-9"), ("min", ", initial=9")]
    )
    return f"anp.{name}({x}, axis={d.axes(x)}, where={x} > 0{initial})"


@step("reduce", 1)
def average(d: Draw) -> str:
    x = d.pick("f", 1)
    return f"anp.average({x}, axis={d.axis(x)})"


@step("reduce", 1)
def ufunc_reduce(d: Draw) -> str:
    x = d.pick("if", 1)
    ufunc = d.choice(["add", "multiply", "maximum"])
    form = d.choice(
        [
            f"lax.reduce({x}, np.{d.known[x].dtype}(0), lax.add, (0,))",
            f"np.{ufunc}.reduce({x}, axis={d.axis(x)})",
            f"lax.reduce_max({x}, (0,))",
        ]
    )
    return form.replace("np.bfloat16", "anp.bfloat16")


@step("cumulative", 5)
def cumulative(d: Draw) -> str:
    x = d.pick("if" if d.chance(0.8) else "bc", 1)
    name = d.choice(["cumsum", "cumsum", "cumprod", "cummax", "cummin", "nancumsum"])
    inner = f"anp.sin({x})" if name == "cumprod" else x
    axis = d.choice(["None", str(d.axis(x)), str(d.axis(x))])
    if name in ("cummax", "cummin"):
        axis = str(d.axis(x))
    return f"anp.{name}({inner}, axis={axis})"


@step("cumulative", 2)
def lax_cumulative(d: Draw) -> str:
    x = d.pick("f", 1)
    name = d.choice(["cumsum", "cummax", "cummin", "cumlogsumexp", "cumprod"])
    axis = d.axis(x) % d.known[x].ndim
    return f"lax.{name}({x}, axis={axis}, reverse={d.chance(0.5)})"


@step("cumulative", 2)
def differences(d: Draw) -> str:
    x = d.pick("if", 1)
    return f"anp.diff({x}, n={d.integer(1, 2)}, axis={d.axis(x)})"


@step("cumulative", 1)
def gradient(d: Draw) -> str:
    x = d.pick("f", 1)
    return f"anp.gradient({x}, axis={d.axis(x)})"


@step("cumulative", 1)
def trapezoid(d: Draw) -> str:
    x = d.pick("f", 1)
    return f"anp.trapezoid({x}, axis={d.axis(x)})"


@step("cumulative", 1)
def associative(d: Draw) -> str:
    x = d.pick("f", 1)
    axis = d.axis(x) % d.known[x].ndim
    fn = d.choice(["anp.add", "anp.maximum", "lambda a, b: a * 0.5 + b"])
    if "lambda" in fn:
        fn = "lambda a, b: a + b"
    return f"lax.associative_scan({fn}, {x}, axis={axis})"


@step("sorting", 4)
def sorted_(d: Draw) -> str:
    x = d.pick("bif", 1)
    axis = d.choice([str(d.axis(x)), "None"], (4, 1))
    return f"anp.{d.choice(['sort', 'argsort'])}({x}, axis={axis})"


@step("sorting", 1)
def partition(d: Draw) -> str:
    x = d.pick("if", 1)
    return f"anp.partition({x}, 0, axis={d.axis(x)})"


@step("sorting", 2)
def top(d: Draw) -> str:
    return f"lax.top_k({d.pick('if', 1)}, {d.integer(1, 3)})"


@step("sorting", 1)
def lexsort(d: Draw) -> str:
    x = d.pick("if", 1, 1)
    return f"anp.lexsort(({x}, anp.abs({x})))"


@step("sorting", 1)
def key_value(d: Draw) -> str:
    x = d.pick("f", 1)
    return f"lax.sort_key_val({x}, 2 * {x})"


@step("statistics", 3)
def quantile(d: Draw) -> str:
    x = d.pick("f", 1)
    axis = d.choice(["None", str(d.axis(x))])
    return d.choice(
        [f"anp.median({x}, axis={axis})", f"anp.quantile({x}, 0.25, axis={axis})"]
    )


@step("statistics", 1)
def covariance(d: Draw) -> str:
    x = d.pick("f", 2, 2)
    return f"anp.{d.choice(['cov', 'corrcoef'])}({x}, rowvar={d.chance(0.5)})"


@step("statistics", 1)
def histogram(d: Draw) -> str:
    x = d.pick("f", 1)
    return f"anp.histogram({x}, bins={d.integer(1, 4)}, range=(-2.0, 2.0))[0]"


@step("statistics", 1)
def bincount(d: Draw) -> str:
    return f"anp.bincount({d.pick('i', 1, 1)} % 4, length=4)"


@step("statistics", 1)
def norms(d: Draw) -> str:
    x = d.pick("fc", 1)
    return f"anp.linalg.norm({x}, axis={d.axis(x)}{options(d)})"
