"""Bodies of cond, switch, scan, while, fori, map, jit; custom rules, checkpoint."""

from __future__ import annotations

import re
from typing import Final

from tests.fuzz.generator import Draw, kind_of, step

PLACE: Final = re.compile(r"\b_\b")


def body(d: Draw, name: str, shape: tuple[int, ...], dtype: str) -> str:
    """An expression of ``name`` that keeps its type."""
    kind = kind_of(dtype)
    a = "_"
    forms = [a, f"{a}[()]"]
    if kind == "f":
        forms += [
            f"anp.sin({a})",
            f"{a} * 0.5",
            f"1 - {a}",
            f"anp.where({a} > 0, {a}, 0)",
        ]
        forms += [f"anp.maximum({a}, 0) - 0.25 * {a}", f"{a} / (1 + anp.abs({a}))"]
        if shape:
            forms += [
                f"{a} - anp.mean({a})",
                f"{a} * 0.5 + anp.max({a}) if 0 not in {shape} else {a}",
            ]
    elif kind == "i":
        forms += [f"{a} + 1", f"{a} ^ 3", f"{a} * 2", f"anp.maximum({a}, 1)"]
    elif kind == "b":
        forms += [f"~{a}", f"{a} | True"]
    else:
        forms += [f"anp.conj({a})", f"{a} * 1j", f"{a} * 0.5"]
    if shape:
        forms += [
            f"anp.flip({a}, 0)",
            f"anp.roll({a}, 1)",
            f"anp.cumsum({a}, 0).astype({dtype!r})",
        ]
        if kind != "b":
            forms.append(f"{a} + anp.sum({a}).astype({dtype!r})")
        n = shape[0]
        if n:
            forms += [
                f"{a}.at[{d.integer(0, n - 1)}].set({d.literal(dtype)})",
                f"{a}[anp.arange({n - 1}, -1, -1)]",
                f"{a}[{d.integer(0, n - 1)}] + {a} * 0" if kind in "fc" else a,
            ]
    if len(shape) == 2 and shape[0] == shape[1] and kind == "f":
        forms += [f"{a} @ {a} * 0.1", f"{a}.T"]
    form = d.choice(forms[2:])
    if d.chance(0.3) and len(form) < 30:
        form = PLACE.sub(f"({form})", d.choice(forms[2:]))
    return PLACE.sub(name, form)


def picked(d: Draw, low: int = 0) -> tuple[str, tuple[int, ...], str]:
    x = d.pick("f" if d.chance(0.7) else "ibc", low, 3)
    return x, d.known[x].shape, d.known[x].dtype


def predicate(d: Draw) -> str:
    x = d.pick("if")
    if d.known[x].shape == ():
        return f"{x} > {d.choice(['0', '1', '-1'])}"
    return d.choice([f"anp.sum({x}) > 0", f"anp.any({x} > 1)", f"anp.all({x} < 2)"])


@step("control", 4)
def cond(d: Draw) -> str:
    x, shape, dtype = picked(d)
    first, second = (body(d, "a", shape, dtype) for _ in range(2))
    if d.chance(0.3):
        other = d.of(shape, dtype)
        return f"lax.cond({predicate(d)}, lambda a: {first}, lambda a: {other}, {x})"
    return f"lax.cond({predicate(d)}, lambda a: {first}, lambda a: {second}, {x})"


@step("control", 1)
def switch(d: Draw) -> str:
    x, shape, dtype = picked(d)
    branches = ", ".join(f"lambda a: {body(d, 'a', shape, dtype)}" for _ in range(3))
    index = d.pick("i")
    return f"lax.switch(anp.sum({index}).astype('int32') % 4, [{branches}], {x})"


@step("control", 4)
def scan(d: Draw) -> str:
    x, shape, dtype = picked(d, 1)
    inner = shape[1:]
    update = body(d, "c", inner, dtype)
    join = {"b": "({u}) ^ r", "i": "({u}) + r"}.get(kind_of(dtype), "0.5 * ({u}) + r")
    out = d.choice(
        ["c", "r", "(c, r)", "anp.sum(c)", body(d, "r", inner, dtype), "None"]
    )
    start = f"anp.zeros({inner}, {dtype!r})"
    if d.chance(0.3) and shape[0]:
        start = f"{x}[0]"
    options = d.choice(["", "", ", reverse=True", ", unroll=2"])
    tail = "" if out != "None" else "[0]"
    turn = f"lambda c, r: ({join.format(u=update)}, {out})"
    return f"lax.scan({turn}, {start}, {x}{options}){tail}"


@step("control", 2)
def fori(d: Draw) -> str:
    x, shape, dtype = picked(d)
    inner = body(d, "c", shape, dtype)
    if d.chance(0.3) and kind_of(dtype) == "f":
        inner = f"({inner}) * 0.5 + i"
        inner = f"({inner}).astype({dtype!r})"
    return f"lax.fori_loop(0, {d.integer(0, 4)}, lambda i, c: {inner}, {x})"


@step("control", 2)
def while_loop(d: Draw) -> str:
    x, shape, dtype = picked(d)
    inner = body(d, "c[1]", shape, dtype)
    n = d.integer(0, 4)
    turn = f"lambda c: (c[0] + 1, {inner})"
    return f"lax.while_loop(lambda c: c[0] < {n}, {turn}, (0, {x}))[1]"


@step("control", 1)
def data_dependent_while(d: Draw) -> str:
    x = d.pick("f", 0, 2)
    return (
        f"lax.while_loop(lambda c: anp.max(anp.abs(c), initial=0) > 1, "
        f"lambda c: c * 0.25, anp.clip({x}, -50, 50))"
    )


@step("control", 2)
def mapped(d: Draw) -> str:
    x, shape, dtype = picked(d, 1)
    return f"lax.map(lambda r: {body(d, 'r', shape[1:], dtype)}, {x})"


@step("calls", 2)
def inner_vmap(d: Draw) -> str:
    x, shape, dtype = picked(d, 1)
    if d.chance(0.3):
        return f"af.vmap(lambda r: anp.ones(3) * anp.sum(r))({x})"
    axis = d.integer(0, len(shape) - 1)
    rest = (*shape[:axis], *shape[axis + 1 :])
    inner = body(d, "r", rest, dtype)
    return (
        f"af.vmap(lambda r: {inner}, in_axes={axis}, out_axes={d.choice([0, -1])})({x})"
    )


@step("calls", 2)
def inner_jit(d: Draw) -> str:
    x, shape, dtype = picked(d)
    wrap = d.choice(["af.jit", "af.jit", "af.checkpoint", "af.operator"], (3, 3, 2, 0))
    return f"{wrap}(lambda a: {body(d, 'a', shape, dtype)})({x})"


@step("calls", 2)
def inner_gradient(d: Draw) -> str:
    x = d.pick("f", 0, 2)
    inner = body(d, "a", d.known[x].shape, d.known[x].dtype)
    if d.chance(0.3):
        shape = d.known[x].shape
        zeros = f"anp.zeros({shape}, {d.known[x].dtype!r})"
        return f"{x} + af.grad(lambda a: anp.sum({inner}))({zeros})"
    return f"af.grad(lambda a: anp.sum({inner}))({x})"


@step("calls", 1)
def custom(d: Draw) -> str:
    x = d.pick("f", 0, 3)
    inner = body(d, "a", d.known[x].shape, d.known[x].dtype)
    forward = f"(af.custom_jvp(lambda a: {inner}))({x})"
    reverse = f"(af.custom_vjp(lambda a: {inner}))({x})"
    return d.choice(
        [
            f"(lambda g: (g.defjvp(lambda p, t: (g(*p), t[0] * 2)), g)[1]){forward}",
            "(lambda g: (g.defvjp(lambda a: (g(a), a), lambda a, c: (c * 3,)), g)[1])"
            + reverse,
            f"af.stop_gradient({x}) * 2",
        ]
    )


@step("calls", 1)
def barrier(d: Draw) -> str:
    x = d.pick()
    return f"lax.optimization_barrier({x})"
