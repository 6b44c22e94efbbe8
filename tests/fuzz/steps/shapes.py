"""Views and rearrangements: reshape, transpose, join, pad; constants."""

from __future__ import annotations

import numpy as np

from tests.fuzz.generator import Draw, NotDrawnError, step


@step("shapes", 5)
def reshape(d: Draw) -> str:
    x = d.pick()
    known = d.known[x]
    shapes: list[tuple[int, ...]] = [(-1,), (known.size,)]
    if known.size:
        for n in (2, 3, 4, 5):
            if known.size % n == 0:
                shapes += [(n, -1), (-1, n), (1, n, known.size // n)]
    else:
        shapes += [(0, 5), (3, 0), (0,), (2, 0, 3)]
    shape = d.choice(shapes)
    form = d.choice(["anp.reshape({}, {})", "{}.reshape({})"])
    return form.format(x, shape)


@step("shapes", 4)
def transpose(d: Draw) -> str:
    x = d.pick(low=1)
    ndim = d.known[x].ndim
    permutation = tuple(d.rng.permutation(ndim).tolist())
    return d.choice(
        [
            f"{x}.T",
            f"anp.transpose({x}, {permutation})",
            f"anp.swapaxes({x}, {d.axis(x)}, {d.axis(x)})",
            f"anp.moveaxis({x}, {d.axis(x)}, {d.axis(x)})",
        ]
    )


@step("shapes", 2)
def dims(d: Draw) -> str:
    x = d.pick()
    ndim = d.known[x].ndim
    return d.choice(
        [
            f"anp.expand_dims({x}, {d.integer(0, ndim)})",
            f"anp.squeeze({x})",
            f"anp.ravel({x})",
            f"{x}.flatten()",
            f"anp.atleast_2d({x})",
            f"{x}[..., None]",
        ]
    )


@step("shapes", 4)
def flip(d: Draw) -> str:
    x = d.pick(low=1)
    return d.choice(
        [
            f"anp.flip({x}, {d.axis(x)})",
            f"anp.flip({x})",
            f"anp.roll({x}, {d.integer(-3, 3)}, {d.axis(x)})",
            f"anp.roll({x}, {d.integer(-3, 3)})",
        ]
    )


@step("shapes", 1)
def rotate(d: Draw) -> str:
    return f"anp.rot90({d.pick(low=2)}, {d.integer(-1, 2)})"


@step("shapes", 3)
def broadcast(d: Draw) -> str:
    x = d.pick()
    known = d.known[x]
    lead = d.integer(0, 4)
    shape = (lead, *known.shape)
    shape = tuple(d.integer(0, 4) if n == 1 else n for n in shape)
    if int(np.prod(shape)) > d.limit:
        raise NotDrawnError
    return f"anp.broadcast_to({x}, {shape})"


@step("shapes", 3)
def repeat(d: Draw) -> str:
    x = d.pick(low=1)
    return d.choice(
        [
            f"anp.repeat({x}, {d.integer(0, 3)}, axis={d.axis(x)})",
            f"anp.tile({x}, {d.integer(0, 3)})",
            f"anp.tile({x}, (2, {d.integer(1, 2)}))",
            f"anp.resize({x}, ({d.integer(0, 4)}, 3))",
        ]
    )


@step("shapes", 2)
def triangle(d: Draw) -> str:
    x = d.pick(low=2)
    return d.choice(
        [
            f"anp.{d.choice(['tril', 'triu'])}({x}, {d.integer(-2, 2)})",
            f"anp.diagonal({x}, {d.integer(-1, 1)})",
            f"anp.trace({x})",
        ]
    )


@step("shapes", 1)
def diag(d: Draw) -> str:
    return f"anp.diag({d.pick('if', 1, 2)}, {d.integer(-1, 1)})"


@step("join", 4)
def concatenate(d: Draw) -> str:
    x = d.pick(low=1)
    axis = d.axis(x)
    known = d.known[x]
    shape = list(known.shape)
    shape[axis] = d.integer(0, 4)
    y = d.of(tuple(shape), known.dtype)
    parts = [x, y] if d.chance(0.6) else [y, x, f"{x} * 2"]
    return f"anp.concatenate([{', '.join(parts)}], axis={axis})"


@step("join", 2)
def stack(d: Draw) -> str:
    x = d.pick()
    known = d.known[x]
    y = d.of(known.shape, known.dtype)
    name = d.choice(["stack", "hstack", "vstack", "dstack", "column_stack"])
    axis = f", axis={d.integer(0, known.ndim)}" if name == "stack" else ""
    return f"anp.{name}([{x}, {y}]{axis})"


@step("join", 3)
def pad(d: Draw) -> str:
    x = d.pick(low=1)
    known = d.known[x]
    widths = [(d.integer(0, 2), d.integer(0, 2)) for _ in range(known.ndim)]
    mode = d.choice(["constant", "edge", "reflect", "wrap", "symmetric", "mean"])
    if mode == "constant" and d.chance(0.5):
        value = d.literal(known.dtype)
        return f"anp.pad({x}, {tuple(widths)}, constant_values={value})"
    return f"anp.pad({x}, {tuple(widths)}, mode={mode!r})"


@step("join", 2)
def lax_pad(d: Draw) -> str:
    x = d.pick("if", 1)
    known = d.known[x]
    config = tuple(
        (d.integer(-1, 2), d.integer(-1, 2), d.integer(0, 1)) for _ in known.shape
    )
    value = f"{x}.sum().astype({known.dtype!r})"
    if d.chance(0.6):
        value = f"anp.asarray({d.literal(known.dtype)}, {known.dtype!r})"
    return f"lax.pad({x}, {value}, {config})"


@step("join", 2)
def split(d: Draw) -> str:
    x = d.pick(low=1)
    axis = d.axis(x)
    n = d.known[x].shape[axis]
    if n < 2:
        raise NotDrawnError
    return d.choice(
        [
            f"anp.array_split({x}, 2, axis={axis})",
            f"anp.split({x}, [1], axis={axis})",
        ]
    )


@step("join", 1)
def insert(d: Draw) -> str:
    x = d.pick("if", 1)
    return d.choice(
        [
            f"anp.append({x}, {x})",
            f"anp.delete({x}, 0, axis={d.axis(x)})",
            f"anp.insert({x}, 1, 3, axis={d.axis(x)})",
            f"anp.append({x}, {d.literal(d.known[x].dtype)})",
        ]
    )


@step("join", 1)
def grid(d: Draw) -> str:
    x, y = d.pick("if", 1, 1), d.pick("if", 1, 1)
    return d.choice(
        [f"anp.meshgrid({x}, {y})", f"anp.outer({x}, {y})", f"anp.kron({x}, {y})"]
    )


@step("create", 2)
def created(d: Draw) -> str:
    shape = d.shape(0, 3)
    dtype = d.dtype("if")
    n = d.integer(0, 5)
    return d.choice(
        [
            f"anp.arange({n})",
            f"anp.arange({n}, -2, -1, dtype='float32')",
            f"anp.full({shape}, {d.literal(dtype)}, {dtype!r})",
            f"anp.ones({shape}, {dtype!r})",
            f"anp.linspace(0.0, 1.0, {n})",
            f"anp.eye({n}, {d.integer(1, 4)}, dtype={dtype!r})",
            f"anp.zeros({shape}, {dtype!r})",
            f"lax.iota({dtype!r}, {n})",
        ]
    )


@step("create", 2)
def created_of_a_value(d: Draw) -> str:
    x = d.pick()
    return d.choice(
        [
            f"anp.full_like({x}, 2)",
            f"anp.array([{d.literal('float32')}, 1.0])",
            f"anp.full((3,), anp.sum({x}))",
            f"anp.linspace(anp.sum({x}), 2.0, 4)",
        ]
    )
