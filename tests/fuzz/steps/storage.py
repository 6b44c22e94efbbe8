"""float8 and int4: casts, bits, products into other dtypes, loops that carry them."""

from __future__ import annotations

from typing import Final

from tests.fuzz.forms import form
from tests.fuzz.generator import Draw, kind_of, step

WIDE: Final = ("float32", "float32", "float64", "float16", "bfloat16", "int32")


@step("storage", 5)
def to_storage(d: Draw) -> str:
    x = d.pick("bifs")
    return f"{x}.astype({d.dtype('s')!r})"


@step("storage", 5)
def from_storage(d: Draw) -> str:
    return f"{d.pick('s')}.astype({d.dtype('bif')!r})"


@step("storage", 3)
def rounded(d: Draw) -> str:
    """Numbers as a storage type holds them, and arithmetic with these."""
    x = d.pick("if")
    dtype = d.known[x].dtype
    stored = f"{x}.astype({d.dtype('s')!r}).astype({dtype!r})"
    return d.choice([stored, f"{stored} + {x}", f"anp.sum({stored})", f"-{stored}"])


@step("storage", 2)
def bits(d: Draw) -> str:
    if d.chance(0.5):
        return f"lax.bitcast_convert_type({d.pick('s')}, 'uint8')"
    x = d.pick("i", fits=lambda t: t.dtype in ("int8", "uint8"))
    return (
        f"lax.bitcast_convert_type({x}, {d.choice(['float8_e4m3fn', 'float8_e5m2'])!r})"
    )


@step("storage", 5)
def product(d: Draw) -> str:
    x = d.pick("s", 1, 3)
    shape, dtype = d.known[x].shape, d.known[x].dtype
    into = "int32" if dtype.endswith("int4") else "float32"
    columns = d.integer(1, 5)
    y = d.of((*shape[:-2], shape[-1], columns), dtype)
    if d.chance(0.3):
        into = d.choice(WIDE)
    return d.choice(
        [
            f"anp.matmul({x}, {y}, preferred_element_type={into!r})",
            f"anp.tensordot({x}, {y}, 0, preferred_element_type={into!r})",
            f"anp.einsum('...i,...i->...', {x}, {x}, preferred_element_type={into!r})",
        ]
    )


@step("storage", 2)
def scaled_product(d: Draw) -> str:
    """A product with weights that are stored in 8 or 4 bits."""
    x = d.pick("f", 1, 3, fits=lambda t: t.dtype in ("float32", "float16", "bfloat16"))
    known = d.known[x]
    y = d.of((known.shape[-1], d.integer(1, 5)), d.dtype("s"))
    return f"{x} @ ({y}.astype({known.dtype!r}) * 0.5)"


@step("storage", 3)
def chosen(d: Draw) -> str:
    x = d.pick("s")
    known = d.known[x]
    y = d.of(known.shape, known.dtype)
    return d.choice(
        [
            f"anp.where({x}.astype('float32') > 0, {x}, {y})",
            f"lax.select({x}.astype('int32') == 1, {x}, {y})",
            f"anp.choose({x}.astype('int32') % 2, [{x}, {y}], mode='clip')",
        ]
    )


@step("storage", 3)
def loop(d: Draw) -> str:
    x = d.pick("s", 1)
    dtype = d.known[x].dtype
    wide = "int32" if kind_of(dtype) == "s" and dtype.endswith("int4") else "float32"
    grown = f"(c.astype({wide!r}) * 2).astype({dtype!r})"
    count = d.integer(0, 4)
    return d.choice(
        [
            f"lax.scan(lambda c, _: (anp.flip(c), c), {x}, None, length={count})",
            f"lax.scan(lambda c, _: ({grown}, c[0]), {x}, None, length={count})",
            (
                f"lax.scan(lambda s, v: (s + v.astype({wide!r}).sum(), v), "
                f"anp.zeros((), {wide!r}), {x})"
            ),
            f"lax.fori_loop(0, {count}, lambda k, c: anp.roll(c, k), {x})",
            f"lax.cond({x}.astype({wide!r}).sum() > 0, lambda c: c, anp.flip, {x})",
            f"lax.map(lambda v: v.astype({wide!r}) + 1, {x})",
            (
                f"lax.while_loop(lambda c: c[1] < {count}, "
                f"lambda c: (c[0][::-1], c[1] + 1), ({x}, 0))"
            ),
        ]
    )


form(
    *("storage", 4, "s", 1),
    "{x}[::-1]",
    "{x}[{{n} - 1}:]",
    "{x}.at[0].set({x}[-1])",
    "anp.take({x}, anp.array([0, -1, 0]), axis={k})",
    "anp.take({x}, anp.array([0, 9, -9]), axis={k}, mode='{clip|wrap|fill}')",
    "lax.dynamic_slice({x}, {x}.ndim * (0,), {x}.shape)",
    "lax.dynamic_update_slice({x}, {x}[:1], {x}.ndim * (1,))",
    "anp.concatenate([{x}, {y}], axis={k})",
    "lax.stop_gradient({x})",
    "{x}[anp.arange({n}) % 2 == 0].astype('float32')",
)
