"""Functions of elements: unary, binary, of integers, special, activations."""

from __future__ import annotations

from typing import Final

from tests.fuzz.generator import Draw, NotDrawnError, kind_of, step

ANY: Final = (
    *("abs", "square", "sign", "negative", "positive", "conj", "real", "imag"),
    *("isfinite", "isinf", "isnan", "isneginf", "isposinf", "signbit", "iscomplex"),
    *("isreal", "nan_to_num", "logical_not", "ones_like", "zeros_like"),
)
FLOAT: Final = (
    *("exp", "exp2", "expm1", "sin", "cos", "tan", "tanh", "sinh", "cosh", "arctan"),
    *("arcsinh", "floor", "ceil", "trunc", "rint", "round", "cbrt", "sinc"),
    *("deg2rad", "rad2deg", "degrees", "radians", "fix", "fabs", "i0", "spacing"),
)
POSITIVE: Final = ("sqrt", "log", "log2", "log10", "log1p", "reciprocal", "arccosh")
UNIT: Final = ("arcsin", "arccos", "arctanh")
BINARY: Final = (
    *("add", "subtract", "multiply", "maximum", "minimum", "fmax", "fmin", "hypot"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("arctan2", "copysign", "heaviside", "logaddexp", "logaddexp2", "nextafter"),
    *("logical_and", "logical_or", "logical_xor", "true_divide", "isclose", "divmod"),
    *("float_power", "power", "floor_divide", "remainder", "fmod", "mod"),
)
OPERATORS: Final = ("+", "-", "*", "/", "+", "-", "*", "<", ">=", "==", "!=", ">")


def either(d: Draw, x: str, y: str) -> tuple[str, str]:
    return (y, x) if d.chance(0.4) else (x, y)


@step("elementwise", 2)
def any_unary(d: Draw) -> str:
    return f"anp.{d.choice(ANY)}({d.pick()})"


@step("elementwise", 5)
def float_unary(d: Draw) -> str:
    return f"anp.{d.choice(FLOAT)}({d.pick('fci' if d.chance(0.2) else 'f')})"


@step("elementwise", 3)
def positive_unary(d: Draw) -> str:
    x = d.pick("f")
    inner = x if d.chance(0.15) else d.choice([f"anp.abs({x}) + 1", f"{x} * {x} + 0.5"])
    return f"anp.{d.choice(POSITIVE)}({inner})"


@step("elementwise", 1)
def unit_unary(d: Draw) -> str:
    x = d.pick("f")
    inner = (
        x if d.chance(0.15) else d.choice([f"0.9 * anp.tanh({x})", f"anp.sin({x}) / 2"])
    )
    return f"anp.{d.choice(UNIT)}({inner})"


@step("elementwise", 2)
def lax_unary(d: Draw) -> str:
    names = ["neg", "rsqrt", "logistic", "erf", "tanh", "sign", "exp", "cos", "square"]
    x = d.pick("f")
    inner = f"anp.abs({x}) + 0.5" if d.chance(0.5) else x
    return f"lax.{d.choice(names)}({inner})"


@step("elementwise", 1)
def rounded(d: Draw) -> str:
    return f"anp.round({d.pick('f')}, {d.integer(-1, 2)})"


@step("elementwise", 1)
def several(d: Draw) -> str:
    return f"anp.{d.choice(['modf', 'frexp'])}({d.pick('f')})"


@step("elementwise", 1)
def polynomial(d: Draw) -> str:
    x = d.pick("f")
    return f"anp.polyval(anp.array([0.5, -1.0, 2.0], {d.known[x].dtype!r}), {x})"


@step("binary", 8)
def operator(d: Draw) -> str:
    x = d.pick()
    left, right = either(d, x, d.companion(x))
    return f"{left} {d.choice(OPERATORS)} {right}"


@step("binary", 4)
def function(d: Draw) -> str:
    x = d.pick("bifc")
    left, right = either(d, x, d.companion(x))
    return f"anp.{d.choice(BINARY)}({left}, {right})"


@step("binary", 2)
def power(d: Draw) -> str:
    x = d.pick("fci")
    exponent = d.choice(["2", "3", "0.5", "-1", "0", "1", "2.0", "-0.5", "4"])
    if d.chance(0.2):
        return f"{d.choice(['2', '0.5', '3'])} ** {x}"
    if d.chance(0.2):
        return f"(anp.abs({x}) + 0.5) ** {d.companion(x)}"
    return f"{x} ** {exponent}"


@step("binary", 2)
def quotient(d: Draw) -> str:
    x = d.pick("f")
    y = d.companion(x)
    return d.choice(
        [f"{x} / (1 + anp.abs({y}))", f"({x} - {y}) / 2", f"1 / (2 + anp.cos({x}))"]
    )


@step("binary", 1)
def divided(d: Draw) -> str:
    x = d.pick("if")
    left, right = either(d, x, d.companion(x))
    return f"{left} {d.choice(['//', '%'])} {right}"


@step("binary", 1)
def lax_binary(d: Draw) -> str:
    x = d.pick("if")
    y = d.of(d.known[x].shape, d.known[x].dtype)
    names = ["add", "sub", "mul", "div", "rem", "max", "min", "pow", "lt", "ge", "ne"]
    return f"lax.{d.choice(names)}({x}, {y})"


@step("binary", 1)
def ldexp(d: Draw) -> str:
    return f"anp.ldexp({d.pick('f')}, {d.integer(-3, 3)})"


@step("integers", 4)
def bits(d: Draw) -> str:
    x = d.pick("ib")
    left, right = either(d, x, d.companion(x))
    return f"{left} {d.choice(['&', '|', '^'])} {right}"


@step("integers", 2)
def integer_unary(d: Draw) -> str:
    x = d.pick("i")
    return d.choice(
        [
            f"~{x}",
            f"anp.bitwise_count({x})",
            f"lax.clz({x})",
            f"lax.population_count({x})",
        ]
    )


@step("integers", 2)
def integer_binary(d: Draw) -> str:
    x = d.pick("i")
    left, right = either(d, x, d.companion(x))
    return (
        f"anp.{d.choice(['gcd', 'lcm', 'floor_divide', 'remainder'])}({left}, {right})"
    )


@step("integers", 2)
def shift(d: Draw) -> str:
    x = d.pick("i")
    return f"{x} {d.choice(['<<', '>>'])} {d.integer(0, 9)}"


@step("integers", 1)
def packed(d: Draw) -> str:
    name, kinds = d.choice([("packbits", "b"), ("unpackbits", "i")])
    x = d.pick(kinds, 1)
    return f"anp.{name}({x}, axis={d.axis(x)})"


@step("special", 3)
def special_unary(d: Draw) -> str:
    names = [
        "erf",
        "erfc",
        "expit",
        "log_expit",
        "log_ndtr",
        "ndtr",
        "i0e",
        "i1e",
        "i1",
    ]
    names += ["spence", "dawsn", "entr", "erfcx"]
    if d.has_compiler:
        names += ["sici", "exp1", "expi", "fresnel"]
    x = d.pick("f")
    inner = x if d.chance(0.3) else f"anp.abs({x}) / 2 + 0.5"
    return f"special.{d.choice(names)}({inner})"


@step("special", 2)
def special_positive(d: Draw) -> str:
    names = ("gammaln", "digamma", "gamma", "factorial", "loggamma")
    return f"special.{d.choice(names)}(anp.abs({d.pick('f')}) + 0.75)"


@step("special", 2)
def special_unit(d: Draw) -> str:
    names = ("logit", "ndtri")
    unit = f"(0.5 + 0.4 * anp.tanh({d.pick('f')}))"
    if d.chance(0.3):
        return f"special.erfinv({unit} - 0.5)"
    return f"special.{d.choice(names)}({unit})"


@step("special", 2)
def special_binary(d: Draw) -> str:
    x = d.pick("f")
    y = d.companion(x)
    names = ["xlogy", "xlog1py", "rel_entr", "kl_div", "betaln"]
    if d.has_compiler:
        names += ["gammainc", "zeta"]
    name = d.choice(names)
    if name == "zeta":
        return f"special.zeta(anp.abs({x}) + 1.5, anp.abs({y}) + 1)"
    return f"special.{name}(anp.abs({x}) + 0.5, anp.abs({y}) + 0.5)"


@step("nn", 4)
def activation(d: Draw) -> str:
    names = (
        *("relu", "relu6", "silu", "gelu", "elu", "celu", "selu", "softplus", "mish"),
        *("hard_tanh", "hard_sigmoid", "hard_silu", "leaky_relu", "log_sigmoid"),
        *("sigmoid", "soft_sign", "sparse_plus", "squareplus", "swish", "tanh"),
    )
    return f"nn.{d.choice(names)}({d.pick('f')})"


@step("nn", 4)
def rows(d: Draw) -> str:
    x = d.pick("f", 1)
    names = ("softmax", "log_softmax", "standardize", "logsumexp", "logmeanexp", "glu")
    name = d.choice(names)
    axis = d.axis(x)
    if name == "glu" and d.known[x].shape[axis] % 2:
        name = "softmax"
    return f"nn.{name}({x}, axis={axis})"


@step("nn", 2)
def normalized(d: Draw) -> str:
    x = d.pick("f", 1)
    n = d.known[x].shape[-1]
    dtype = d.known[x].dtype
    deviation = f"anp.sqrt(anp.var({x}, -1, keepdims=True) + 1e-5)"
    return d.choice(
        [
            f"({x} - anp.mean({x})) / anp.sqrt(anp.var({x}) + 1e-5)",
            f"({x} - anp.mean({x}, -1, keepdims=True)) / {deviation}",
            f"nn.rms_norm({x}, {d.of((n,), dtype)})",
            f"nn.layer_norm({x}, {d.of((n,), dtype)}, {d.of((n,), dtype)})",
        ]
    )


@step("nn", 1)
def one_hot(d: Draw) -> str:
    return f"nn.one_hot({d.pick('i')}, {d.integer(1, 5)})"


@step("complex", 2)
def complex_parts(d: Draw) -> str:
    x = d.pick("c")
    names = ["abs", "real", "imag", "conj", "angle", "exp", "square", "sin", "sqrt"]
    return f"anp.{d.choice([*names, 'log', 'tanh'])}({x})"


@step("complex", 2)
def to_complex(d: Draw) -> str:
    x = d.pick("f", fits=lambda t: t.dtype in ("float32", "float64"))
    y = d.of(d.known[x].shape, d.known[x].dtype)
    return d.choice([f"lax.complex({x}, {y})", f"{x} * 1j", f"{x} + 1j * {y}"])


@step("dtypes", 5)
def cast(d: Draw) -> str:
    x = d.pick()
    if kind_of(d.known[x].dtype) == "c":
        return f"{x}.astype({d.dtype('c')!r})"
    return f"{x}.astype({d.dtype('bifc')!r})"


@step("dtypes", 1)
def bitcast(d: Draw) -> str:
    x = d.pick("if")
    return f"lax.bitcast_convert_type({x}, {d.dtype('if')!r})"


@step("dtypes", 1)
def less_precise(d: Draw) -> str:
    return f"lax.reduce_precision({d.pick('f')}, {d.integer(4, 8)}, {d.integer(3, 10)})"


@step("choose", 5)
def where(d: Draw) -> str:
    x = d.pick()
    tested = d.pick("if", fits=lambda t: t.shape == d.known[x].shape)
    test = f"{tested} {d.choice(['<', '>', '<=', '>=', '==', '!='])} "
    test += d.choice(["0", "1", d.companion(tested)])
    left, right = either(d, x, d.companion(x))
    return f"anp.where({test}, {left}, {right})"


@step("choose", 3)
def rectified(d: Draw) -> str:
    """What a comparison of another array leaves of one, and what comes of that."""
    x = d.pick("f")
    known = d.known[x]
    tested = d.of(known.shape, d.choice([known.dtype, "float32", "int32"]))
    kept = f"anp.where({tested} {d.choice(['<=', '<', '>'])} 0, 0, {x})"
    return d.choice([kept, f"{kept} ** 2", f"anp.sin({kept})", f"{kept} * {x}"])


@step("choose", 3)
def clip(d: Draw) -> str:
    x = d.pick("if")
    forms = ["-1, 1", "0, None", "None, 2", "0, 3", f"{d.companion(x)}, 2"]
    if d.known[x].dtype.startswith("u"):
        forms = ["1, 4", "None, 3"]
    if d.chance(0.2):
        return f"anp.clip({d.choice(['1', '2'])}, {x}, {d.companion(x)})"
    return f"anp.clip({x}, {d.choice(forms)})"


@step("choose", 1)
def select(d: Draw) -> str:
    x = d.pick("f")
    return (
        f"anp.select([{x} > 1, {x} < {d.literal('float32')}], "
        f"[{x} * 2, {d.companion(x)}], {d.literal('float32')})"
    )


@step("choose", 1)
def piecewise(d: Draw) -> str:
    x = d.pick("f")
    return (
        f"anp.piecewise({x}, [{x} < 0, {x} >= 1], [lambda t: -t, 2, lambda t: t * t])"
    )


@step("choose", 1)
def chosen(d: Draw) -> str:
    x = d.pick("f")
    if not d.known[x].ndim:
        raise NotDrawnError
    return f"anp.choose({d.pick('i')} % 2, [{x}, {d.companion(x)}])"
