"""Functions of elements: unary, binary, of integers, special, activations."""

from __future__ import annotations

from tests.fuzz.forms import form
from tests.fuzz.generator import Draw, kind_of, step

ANY = (
    "{abs|square|sign|negative|positive|conj|real|imag|isfinite|isinf|isnan|isneginf|"
    "isposinf|signbit|iscomplex|isreal|nan_to_num|logical_not|ones_like|zeros_like}"
)
FLOAT = (
    "{exp|exp2|expm1|sin|cos|tan|tanh|sinh|cosh|arctan|arcsinh|floor|ceil|trunc|rint|"
    "round|cbrt|sinc|deg2rad|rad2deg|degrees|radians|fix|fabs|i0|spacing}"
)
POSITIVE = "{sqrt|log|log2|log10|log1p|reciprocal|arccosh}"
LAX = "{neg|rsqrt|logistic|erf|tanh|sign|exp|cos|square}"
BINARY = (
    "{add|subtract|multiply|maximum|minimum|fmax|fmin|hypot|equal|not_equal|less|"
    "less_equal|greater|greater_equal|arctan2|copysign|heaviside|logaddexp|logaddexp2|"
    "nextafter|logical_and|logical_or|logical_xor|true_divide|isclose|divmod|"
    "float_power|power|floor_divide|remainder|fmod|mod}"
)
OPERATOR = "{+|-|*|/|+|-|*|<|>=|==|!=|>}"

form("elementwise", 2, "bifc", 0, "anp." + ANY + "({x})")
form("elementwise", 5, ("f", "f", "f", "f", "fci"), 0, "anp." + FLOAT + "({x})")
form(
    *("elementwise", 3, "f", 0),
    "anp." + POSITIVE + "({{x}|anp.abs({x}) + 1|{x} * {x} + 0.5})",
)
form(
    *("elementwise", 1, "f", 0),
    "anp.{arcsin|arccos|arctanh}({{x}|0.9 * anp.tanh({x})|anp.sin({x}) / 2})",
)
form("elementwise", 2, "f", 0, "lax." + LAX + "({{x}|anp.abs({x}) + 0.5})")
form("elementwise", 1, "f", 0, "anp.round({x}, {-1..2})")
form("elementwise", 1, "f", 0, "anp.{modf|frexp}({x})")
form("elementwise", 1, "f", 0, "anp.polyval(anp.array([0.5, -1.0, 2.0], {dtype}), {x})")

form(
    *("binary", 8, "bifc", 0),
    "{x} " + OPERATOR + " {z}",
    "{z} " + OPERATOR + " {x}",
)
form(
    *("binary", 4, "bifc", 0),
    "anp." + BINARY + "({x}, {z})",
    "anp." + BINARY + "({z}, {x})",
)
form(
    *("binary", 2, "fci", 0),
    "{x} ** {2|3|0.5|-1|0}",
    "{x} ** {1|2.0|-0.5|4}",
    "{2|0.5|3} ** {x}",
    "(anp.abs({x}) + 0.5) ** {z}",
)
form(
    *("binary", 2, "f", 0),
    "{x} / (1 + anp.abs({z}))",
    "({x} - {z}) / 2",
    "1 / (2 + anp.cos({x}))",
)
form("binary", 1, "if", 0, "{x} {//|%} {z}", "{z} {//|%} {x}")
form("binary", 1, "if", 0, "lax.{add|sub|mul|div|rem|max|min|pow|lt|ge|ne}({x}, {y})")
form("binary", 1, "f", 0, "anp.ldexp({x}, {-3..3})")


@step("integers", 4)
def bits(d: Draw) -> str:
    x = d.pick("ib")
    left, right = d.rng.permutation([x, d.companion(x)])
    return f"{left} {d.choice(['&', '|', '^'])} {right}"


form("integers", 2, "i", 0, "~{x}", "anp.bitwise_count({x})")
form("integers", 2, "i", 0, "lax.{clz|population_count}({x})")
form(
    *("integers", 2, "i", 0),
    "anp.{gcd|lcm|floor_divide|remainder}({x}, {z})",
    "anp.{gcd|lcm|floor_divide|remainder}({z}, {x})",
)
form("integers", 2, "i", 0, "{x} {<<|>>} {0..9}")
form("integers", 0.5, "b", 1, "anp.packbits({x}, axis={k})")
form("integers", 0.5, "i", 1, "anp.unpackbits({x}, axis={k})")

SPECIAL = "{erf|erfc|expit|log_expit|log_ndtr|ndtr|i0e|i1e|i1|spence|dawsn|entr|erfcx}"
SERIES = "{sici|exp1|expi|fresnel}"
form("special", 3, "f", 0, "special." + SPECIAL + "({{x}|anp.abs({x}) / 2 + 0.5})")
form(
    *("special", 1, "f", 0),
    "special." + SERIES + "({{x}|anp.abs({x}) / 2 + 0.5})",
    "special.gammainc(anp.abs({x}) + 0.5, anp.abs({z}) + 0.5)",
    "special.zeta(anp.abs({x}) + 1.5, anp.abs({z}) + 1)",
    is_long=True,
)
form(
    *("special", 2, "f", 0),
    "special.{gammaln|digamma|gamma|factorial|loggamma}(anp.abs({x}) + 0.75)",
)
form(
    *("special", 2, "f", 0),
    "special.{logit|ndtri}(0.5 + 0.4 * anp.tanh({x}))",
    "special.erfinv(0.4 * anp.tanh({x}))",
)
form(
    *("special", 2, "f", 0),
    "special.{xlogy|xlog1py|rel_entr|kl_div|betaln}"
    "(anp.abs({x}) + 0.5, anp.abs({z}) + 0.5)",
)

form(
    *("nn", 4, "f", 0),
    "nn.{relu|relu6|silu|gelu|elu|celu|selu|softplus|mish|hard_tanh}({x})",
    "nn.{hard_sigmoid|hard_silu|leaky_relu|log_sigmoid|sigmoid}({x})",
    "nn.{soft_sign|sparse_plus|squareplus|swish|tanh}({x})",
)
form(
    *("nn", 4, "f", 1),
    "nn.{softmax|log_softmax|standardize|logsumexp|logmeanexp|glu}({x}, axis={k})",
)


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


form("nn", 1, "i", 0, "nn.one_hot({x}, {1..5})")

form(
    *("complex", 2, "c", 0),
    "anp.{abs|real|imag|conj|angle|exp|square|sin|sqrt|log|tanh}({x})",
)


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


form("dtypes", 1, "f", 0, "lax.reduce_precision({x}, {4..8}, {3..10})")


@step("choose", 5)
def where(d: Draw) -> str:
    x = d.pick()
    tested = d.pick("if", fits=lambda t: t.shape == d.known[x].shape)
    test = f"{tested} {d.choice(['<', '>', '<=', '>=', '==', '!='])} "
    test += d.choice(["0", "1", d.companion(tested)])
    left, right = d.rng.permutation([x, d.companion(x)])
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


form(
    *("choose", 2, "f", 0),
    "anp.select([{x} > 1, {x} < {literal}], [{x} * 2, {z}], {literal})",
    "anp.piecewise({x}, [{x} < 0, {x} >= 1], [lambda t: -t, 2, lambda t: t * t])",
)


@step("choose", 1)
def chosen(d: Draw) -> str:
    x = d.pick("f")
    index = d.of(d.known[x].shape, "int32")
    return f"anp.choose({index} % 2, [{x}, {d.companion(x)}])"
