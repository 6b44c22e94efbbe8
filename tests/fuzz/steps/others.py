"""Public functions that need no more than a value, an axis and its extent.

``{x}`` is a value of the kinds that stand first, of at least as many axes as the number
says; ``{y}`` one of its type; ``{k}`` an axis of it, ``{n}`` that axis's extent.
"""

from __future__ import annotations

from typing import Final

from tests.fuzz.generator import Draw, step

NUMPY: Final = (
    ("f", 1, "anp.nanmedian({x}, axis={k})"),
    ("f", 1, "anp.percentile({x}, 30, axis={k})"),
    ("f", 1, "anp.nanquantile({x}, 0.5, axis={k})"),
    ("f", 1, "anp.nanpercentile({x}, [25, 75], axis={k})"),
    ("f", 1, "anp.nancumprod({x}, axis={k})"),
    ("f", 1, "anp.cumulative_sum({x}, axis={k}, include_initial=True)"),
    ("f", 1, "anp.cumulative_prod({x}, axis={k})"),
    ("if", 1, "anp.argpartition({x}, 0, axis={k})"),
    ("bifc", 1, "anp.apply_along_axis(lambda r: r[::-1], {k}, {x})"),
    ("f", 1, "anp.apply_over_axes(anp.sum, {x}, [0])"),
    ("bifc", 2, "anp.fliplr({x})"),
    ("bifc", 1, "anp.flipud({x})"),
    ("bifc", 0, "anp.atleast_3d({x})"),
    ("bifc", 0, "anp.block([[{x}, {x}], [{y}, {x}]])"),
    ("if", 0, "anp.broadcast_arrays({x}, 2)"),
    ("bifc", 2, "anp.matrix_transpose({x})"),
    ("bifc", 2, "anp.rollaxis({x}, {k})"),
    ("bifc", 2, "anp.permute_dims({x}, tuple(range({x}.ndim))[::-1])"),
    ("bifc", 0, "anp.diagflat({x})"),
    ("if", 1, "anp.unstack({x}, axis={k})"),
    ("bifc", 1, "anp.tri({n}, dtype={x}.dtype)"),
    ("f", 2, "anp.fill_diagonal({x}, 3, inplace=False)"),
    (
        "if",
        1,
        "anp.put_along_axis({x}, {x}.argsort({k})[:1] * 0, 3, {k}, inplace=False)",
    ),
    ("f", 0, "anp.geomspace(1.0, anp.abs(anp.sum({x})) + 2.0, 4)"),
    ("f", 1, "anp.hamming({n}) * 2"),
    ("f", 1, "anp.polyadd(anp.ravel({x}), anp.array([1.0, 2.0]))"),
    ("f", 1, "anp.polyint(anp.ravel({x}))"),
    ("f", 1, "anp.polysub(anp.ravel({x}), anp.array([1.0, 2.0]))"),
    ("i", 1, "anp.union1d({x} % 4, anp.array([1, 7]), size=6)"),
    ("i", 1, "anp.intersect1d({x} % 4, anp.array([1, 2]), size=2)"),
    ("i", 1, "anp.setdiff1d({x} % 4, anp.array([1, 2]), size=4)"),
    ("i", 1, "anp.unique_inverse({x} % 3, size=3)"),
    ("i", 1, "anp.ravel_multi_index(({x} % 2, {x} % 3), (2, 3), mode='clip')"),
    ("f", 1, "anp.histogram_bin_edges({x}, 3, range=(-1.0, 2.0))"),
    ("fc", 1, "anp.sort_complex({x})"),
    ("f", 2, "anp.matvec({x}, anp.ones({x}.shape[-1], {x}.dtype))"),
    ("f", 2, "anp.vecmat(anp.ones({x}.shape[-2], {x}.dtype), {x})"),
    ("f", 2, "{x}[anp.triu_indices({n})]"),
    ("f", 1, "{x}[anp.ix_(anp.array([0, -1]))]"),
    ("f", 0, "anp.vectorize(lambda a: a * 2 + 1)({x})"),
    ("i", 0, "anp.invert({x}) | anp.left_shift({x}, 1)"),
    ("f", 0, "anp.pow({x}, 3)"),
    ("f", 1, "anp.trapezoid({x}, dx=0.5, axis={k})"),
)
LAX: Final = (
    ("f", 1, "lax.argmax({x}, {a}, 'int32')"),
    ("if", 0, "lax.clamp(anp.asarray(0, {x}.dtype), {x}, anp.asarray(2, {x}.dtype))"),
    ("bifc", 1, "lax.concatenate([{x}, {y}], {a})"),
    ("bifc", 0, "lax.broadcast({x}, (2,))"),
    (
        "bifc",
        0,
        "lax.broadcast_in_dim({x}, (3, *{x}.shape), tuple(range(1, {x}.ndim + 1)))",
    ),
    ("bifc", 1, "lax.collapse({x}, 0)"),
    ("i", 0, "lax.shift_right_logical({x}, anp.asarray(2, {x}.dtype))"),
    ("i", 0, "lax.mulhi({x}, {y})"),
    ("f", 0, "lax.integer_pow({x}, -2)"),
    ("if", 1, "lax.reduce_min({x}, ({a},))"),
    ("f", 1, "lax.reduce_prod({x}, ({a},))"),
    ("i", 1, "lax.reduce_xor({x}, ({a},))"),
    ("bifc", 0, "lax.select({x} == {x}, {x}, {y})"),
    ("bifc", 0, "lax.select_n({x} != {x}, {x}, {y})"),
    ("if", 1, "lax.sort([{x}, {y}], dimension={k}, num_keys=1)"),
    ("bifc", 1, "lax.split({x}, (1, {n} - 1), axis={a})"),
    ("bifc", 1, "lax.index_take({x}, (anp.array([0, 1]),), (0,))"),
    ("bifc", 1, "lax.dynamic_update_index_in_dim({x}, {y}[:1], 0, 0)"),
    ("bifc", 0, "lax.tile({x}, (2,) * {x}.ndim)"),
    ("f", 0, "lax.stop_gradient({x}) * {x}"),
    ("f", 0, "lax.polygamma(anp.asarray(1, {x}.dtype), anp.abs({x}) + 1)"),
    ("f", 0, "lax.lgamma(anp.abs({x}) + 1)"),
    ("f", 0, "af.ad_checkpoint.checkpoint_name({x} * 2, 'kept')"),
    ("f", 0, "nn.sparse_sigmoid({x}) + nn.log1mexp(anp.abs({x}) + 0.5)"),
    ("bifc", 0, "nn.identity({x})"),
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


def filled_in(d: Draw, table: tuple[tuple[str, int, str], ...]) -> str:
    kinds, low, text = d.choice(table)
    x = d.pick(kinds, low)
    known = d.known[x]
    k = d.axis(x) if known.ndim else 0
    return text.format(
        x=x,
        y=d.of(known.shape, known.dtype) if "{y}" in text else x,
        k=k,
        a=k % max(known.ndim, 1),
        n=known.shape[k] if known.ndim else 1,
    )


@step("others", 2)
def of_numpy(d: Draw) -> str:
    return filled_in(d, NUMPY)


@step("others", 1)
def of_lax(d: Draw) -> str:
    return filled_in(d, LAX)


@step("linalg", 2)
def of_matrices(d: Draw) -> str:
    dtype = d.choice(["float32", "float64"])
    n = d.integer(1, 4)
    x = d.of((n, n), dtype)
    made = f"(anp.tanh({x}) + {n + 1} * anp.eye({n}, dtype={dtype!r}))"
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
