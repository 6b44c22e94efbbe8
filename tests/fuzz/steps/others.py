"""Public functions that need no more than a value, an axis and its extent."""

from __future__ import annotations

from typing import Final

from tests.fuzz.forms import form
from tests.fuzz.generator import Draw, step

form(
    *("others", 0.7, "f", 1),
    "anp.nanmedian({x}, axis={k})",
    "anp.percentile({x}, 30, axis={k})",
    "anp.nanquantile({x}, 0.5, axis={k})",
    "anp.nanpercentile({x}, [25, 75], axis={k})",
    "anp.nancumprod({x}, axis={k})",
    "anp.cumulative_sum({x}, axis={k}, include_initial=True)",
    "anp.cumulative_prod({x}, axis={k})",
    "anp.apply_over_axes(anp.sum, {x}, [0])",
    "anp.hamming({n}) * 2",
    "anp.polyadd(anp.ravel({x}), anp.array([1.0, 2.0]))",
    "anp.polyint(anp.ravel({x}))",
    "anp.polysub(anp.ravel({x}), anp.array([1.0, 2.0]))",
    "anp.histogram_bin_edges({x}, 3, range=(-1.0, 2.0))",
    "{x}[anp.ix_(anp.array([0, -1]))]",
    "anp.trapezoid({x}, dx=0.5, axis={k})",
)
form(
    *("others", 0.14, "if", 1),
    "anp.argpartition({x}, 0, axis={k})",
    "anp.unstack({x}, axis={k})",
    "anp.put_along_axis({x}, {x}.argsort({k})[:1] * 0, 3, {k}, inplace=False)",
)
form(
    *("others", 0.14, "bifc", 1),
    "anp.apply_along_axis(lambda r: r[::-1], {k}, {x})",
    "anp.flipud({x})",
    "anp.tri({n}, dtype={x}.dtype)",
)
form(
    *("others", 0.19, "bifc", 2),
    "anp.fliplr({x})",
    "anp.matrix_transpose({x})",
    "anp.rollaxis({x}, {k})",
    "anp.permute_dims({x}, tuple(range({x}.ndim))[::-1])",
)
form(
    *("others", 0.14, "bifc", 0),
    "anp.atleast_3d({x})",
    "anp.block([[{x}, {x}], [{y}, {x}]])",
    "anp.diagflat({x})",
)
form(
    *("others", 0.05, "if", 0),
    "anp.broadcast_arrays({x}, 2)",
)
form(
    *("others", 0.19, "f", 2),
    "anp.fill_diagonal({x}, 3, inplace=False)",
    "anp.matvec({x}, anp.ones({x}.shape[-1], {x}.dtype))",
    "anp.vecmat(anp.ones({x}.shape[-2], {x}.dtype), {x})",
    "{x}[anp.triu_indices({n})]",
)
form(
    *("others", 0.14, "f", 0),
    "anp.geomspace(1.0, anp.abs(anp.sum({x})) + 2.0, 4)",
    "anp.vectorize(lambda a: a * 2 + 1)({x})",
    "anp.pow({x}, 3)",
)
form(
    *("others", 0.23, "i", 1),
    "anp.union1d({x} % 4, anp.array([1, 7]), size=6)",
    "anp.intersect1d({x} % 4, anp.array([1, 2]), size=2)",
    "anp.setdiff1d({x} % 4, anp.array([1, 2]), size=4)",
    "anp.unique_inverse({x} % 3, size=3)",
    "anp.ravel_multi_index(({x} % 2, {x} % 3), (2, 3), mode='clip')",
)
form(
    *("others", 0.05, "fc", 1),
    "anp.sort_complex({x})",
)
form(
    *("others", 0.05, "i", 0),
    "anp.invert({x}) | anp.left_shift({x}, 1)",
)
form(
    *("others", 0.08, "f", 1),
    "lax.argmax({x}, {a}, 'int32')",
    "lax.reduce_prod({x}, ({a},))",
)
form(
    *("others", 0.04, "if", 0),
    "lax.clamp(anp.asarray(0, {x}.dtype), {x}, anp.asarray(2, {x}.dtype))",
)
form(
    *("others", 0.2, "bifc", 1),
    "lax.concatenate([{x}, {y}], {a})",
    "lax.collapse({x}, 0)",
    "lax.split({x}, (1, {n} - 1), axis={a})",
    "lax.index_take({x}, (anp.array([0, 1]),), (0,))",
    "lax.dynamic_update_index_in_dim({x}, {y}[:1], 0, 0)",
)
form(
    *("others", 0.24, "bifc", 0),
    "lax.broadcast({x}, (2,))",
    "lax.broadcast_in_dim({x}, (3, *{x}.shape), tuple(range(1, {x}.ndim + 1)))",
    "lax.select({x} == {x}, {x}, {y})",
    "lax.select_n({x} != {x}, {x}, {y})",
    "lax.tile({x}, (2,) * {x}.ndim)",
    "nn.identity({x})",
)
form(
    *("others", 0.08, "i", 0),
    "lax.shift_right_logical({x}, anp.asarray(2, {x}.dtype))",
    "lax.mulhi({x}, {y})",
)
form(
    *("others", 0.24, "f", 0),
    "lax.integer_pow({x}, -2)",
    "lax.stop_gradient({x}) * {x}",
    "lax.polygamma(anp.asarray(1, {x}.dtype), anp.abs({x}) + 1)",
    "lax.lgamma(anp.abs({x}) + 1)",
    "af.ad_checkpoint.checkpoint_name({x} * 2, 'kept')",
    "nn.sparse_sigmoid({x}) + nn.log1mexp(anp.abs({x}) + 0.5)",
)
form(
    *("others", 0.08, "if", 1),
    "lax.reduce_min({x}, ({a},))",
    "lax.sort([{x}, {y}], dimension={k}, num_keys=1)",
)
form(
    *("others", 0.04, "i", 1),
    "lax.reduce_xor({x}, ({a},))",
)

MATRICES: Final = (
    "anp.linalg.qr({a})",
    "anp.linalg.eigh({a} + {a}.T)[0]",
    "anp.linalg.eigvals({a}).real.sum()",
    "anp.linalg.matrix_rank({a})",
    "anp.linalg.cond({a})",
    "anp.linalg.multi_dot([{a}, {a}, {a}])",
    "lax.linalg.lu({a})",
    "linalg.expm(0.1 * {a})",
    "anp.linalg.lstsq({a}, anp.ones({n}, {a}.dtype))[0]",
    "anp.linalg.tensorsolve({a}, anp.ones({n}, {a}.dtype))",
)


@step("linalg", 2)
def of_matrices(d: Draw) -> str:
    dtype = d.choice(["float32", "float64"])
    n = d.integer(1, 4)
    x = d.of((n, n), dtype)
    made = f"(anp.tanh(anp.nan_to_num({x})) + {n + 1} * anp.eye({n}, dtype={dtype!r}))"
    return d.choice(MATRICES).replace("{n}", str(n)).replace("{a}", made)


@step("windows", 2)
def dilated(d: Draw) -> str:
    """Convolutions with groups, strides, dilations, padding of each kind."""
    dtype = d.choice(["float32", "float64", "bfloat16"])
    groups = d.choice([1, 1, 2])
    c, o = groups * d.integer(1, 2), groups * d.integer(1, 2)
    k = d.integer(1, 3)
    x = d.of((d.integer(1, 2), c, d.integer(k, 7)), dtype)
    w = d.of((o, c // groups, k), dtype)
    padding = d.choice(["'SAME'", "'VALID'", "[(1, 0)]", "[(2, 2)]"])
    first, second = d.choice([1, 1, 2]), d.choice([1, 1, 2])
    return (
        f"lax.conv_general_dilated({x}, {w}, ({d.integer(1, 2)},), {padding}, "
        f"lhs_dilation=({first},), rhs_dilation=({second},), "
        f"feature_group_count={groups})"
    )
