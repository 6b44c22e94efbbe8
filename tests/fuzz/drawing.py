"""Draws whole programs: lines, outputs, a transformation, and a change of operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tests.fuzz import arrays
from tests.fuzz.arrays import COMPLEX, FLOATS, INTEGERS, STORAGE
from tests.fuzz.case import Case, Change
from tests.fuzz.generator import Draw, NotDrawnError, kind_of
from tests.fuzz.steps import FAMILIES, STEPS
from tests.fuzz.transformations import LOSSES, MAPPED, OF_A_LOSS, Transformation

TRANSFORMATIONS: Final = {
    "plain": 34,
    "grad": 16,
    "value_and_grad": 6,
    "jvp": 7,
    "vjp": 7,
    "vmap": 12,
    "vmap_grad": 6,
    "grad_vmap": 3,
    "hessian": 4,
    "jacfwd": 2,
    "jacrev": 2,
}

MOST_WORK: Final = 4
"""How many times the limit of an array's elements a program computes numbers."""


def draw(seed: int, index: int, limit: int, only: Sequence[str] = ()) -> Case:
    """The program ``index`` of ``seed``."""
    rng = np.random.default_rng([seed, index])
    d = Draw(rng, limit)
    low, high = (0, 3) if rng.random() < 0.9 else (4, 5)
    kinds = d.choice(["f", "bifc", "i", "c"], (7, 4, 2, 1))
    d.new(d.shape(low, high), d.dtype(kinds))
    families = list(FAMILIES)
    weights = [FAMILIES[f] for f in families]
    wanted = d.integer(2, 6)
    taken: list[str] = []
    for _ in range(60):
        if len(d.lines) >= wanted or d.is_broken:
            break
        family = d.choice(families, weights)
        if only and (len(d.lines) == wanted - 1 or rng.random() < 0.5):
            family = d.choice(list(only))
        steps = STEPS[family]
        function = d.choice([f for _, f in steps], [w for w, _ in steps])
        count = len(d.operands)
        names = set(d.known)
        try:
            done = d.try_line(function(d))
        except NotDrawnError:
            done = False
        if done:
            taken.append(family)
        else:  # operands drawn for it go with it
            del d.operands[count:]
            for name in set(d.known) - names:
                del d.known[name]
                d.order.remove(name)
    return _finished(d, tuple(taken))


def _finished(d: Draw, families: tuple[str, ...]) -> Case:
    values = [name for line in d.lines for name in line.targets]
    if not values:
        values = [d.operands[0].name]
    outputs = [values[-1]]
    for name in reversed(values[:-1]):
        if d.chance(0.35) and len(outputs) < 3:
            outputs.append(name)
    case = Case(tuple(d.operands), tuple(d.lines), tuple(outputs), Transformation())
    case = case.without_dead_code()
    if not case.arguments:
        first = d.operands[0]
        kept = replace(first, constant=False)
        rest = [x for x in case.operands if x.name != first.name]
        case = replace(case, operands=(kept, *rest))
    case = replace(case, families=families)
    if d.is_broken:
        return replace(case, outputs=(values[-1],))
    case = _transformed(d, case)
    if d.chance(0.45):
        change = changed(d, case)
        case = replace(case, change=change)
    return case


def _transformed(d: Draw, case: Case) -> Case:
    kind = d.choice(list(TRANSFORMATIONS), list(TRANSFORMATIONS.values()))
    plain = case
    if kind == "plain":
        around = "af.jit" if d.chance(0.05) else ""
        return replace(case, transformation=Transformation(around=around))
    inexact = [y for y in case.outputs if kind_of(d.known[y].dtype) in "fc"]
    directional = kind in ("jvp", "vjp")
    kinds = "fc" if directional else "f"
    moved = [
        x.name
        for x in case.arguments
        if (kind_of(x.dtype) in kinds or x.dtype.startswith("float8"))
        and not (x.python and kind in MAPPED)
    ]
    if kind != "vmap" and not (inexact and moved):
        return case
    if kind in ("hessian", "jacfwd", "jacrev"):
        moved = [x for x in moved if d.known[x].size <= 8]
        if not moved or sum(d.known[y].size for y in inexact) > 40:
            return case
    count = 1 if kind == "hessian" or d.chance(0.6) else len(moved)
    wrt = tuple(d.rng.permutation(moved)[:count].tolist()) if moved else ()
    losses: list[tuple[str, str]] = []
    for y in inexact:
        loss = d.choice(LOSSES)
        if kind_of(d.known[y].dtype) == "c":
            loss = loss.replace("{}", "anp.real({})").replace("{0}", "anp.abs({0})")
        if d.known[y].shape == () and d.chance(0.5):
            loss = "anp.real({})" if kind_of(d.known[y].dtype) == "c" else "{}"
        losses.append((y, loss))
    if kind in MAPPED:
        extent = d.choice((1, 2, 3, 4, 5, 0), (3, 6, 5, 3, 3, 1))
        batched = [
            replace(x, batch=(d.integer(0, len(x.shape)), extent))
            if not (x.constant or x.python)
            and (d.chance(0.7) or (kind == "grad_vmap" and x.name in wrt))
            else x
            for x in case.operands
        ]
        if not any(x.batch for x in batched):
            return case
        case = replace(case, operands=tuple(batched))
    around = d.choice(["", "af.jit", "af.checkpoint"], (8, 1, 1))
    out_axis = -1 if kind == "vmap" and d.chance(0.3) else 0
    made = Transformation(
        kind, () if kind == "vmap" else wrt, tuple(losses), around, out_axis
    )
    if kind not in OF_A_LOSS and kind not in ("jvp", "vjp", "jacfwd", "jacrev"):
        made = replace(made, losses=())
    case = replace(case, transformation=made)
    return plain if _work(d, case) > MOST_WORK * d.limit else case


def _work(d: Draw, case: Case, growth: float = 1.0) -> float:
    """How many numbers the lines compute; ``growth`` if operands grow by as much."""
    kind = case.transformation.kind
    numbers = sum(d.known[y].size for line in case.lines for y in line.targets)
    rows = 1.0
    if kind in ("hessian", "jacfwd"):
        rows = growth * sum(d.known[x].size for x in case.transformation.wrt)
    elif kind == "jacrev":
        rows = growth * sum(d.known[y].size for y, _ in case.transformation.losses)
    elif kind in MAPPED:
        rows = next(x.batch[1] for x in case.operands if x.batch)
    return growth * numbers * rows


def changed(d: Draw, case: Case) -> Change | None:
    """The operands of a second call, with one thing changed."""
    operands = list(case.arguments)
    arrays_ = [k for k, x in enumerate(operands) if not x.python]
    if not arrays_:
        return None
    what = d.choice(["shape", "dtype", "strides", "batch", "values"], (4, 2, 2, 2, 1))
    k = d.choice(arrays_)
    x = operands[k]
    if what == "shape":
        extents = sorted({n for x in operands for n in x.shape})
        if not extents:
            return None
        old = d.choice(extents)
        new = d.choice([0, 1, old + 1, 2, 4, 7])
        operands = [
            replace(x, shape=tuple(new if n == old else n for n in x.shape))
            for x in operands
        ]
        operands = [
            replace(x, layout="row-major")
            if arrays.LAYOUTS[x.layout](x.full_shape) is None
            else x
            for x in operands
        ]
        sizes = [np.prod(x.shape, dtype=np.int64) for x in operands]
        growth = max(
            n / max(1, d.known[x.name].size)
            for n, x in zip(sizes, operands, strict=True)
        )
        if max(sizes) > 2 * d.limit or _work(d, case, growth) > MOST_WORK * d.limit:
            return None
        return Change(f"extent {new} for {old}", tuple(operands))
    if what == "dtype":
        same = {"f": FLOATS, "i": INTEGERS, "c": COMPLEX, "b": ("bool",), "s": STORAGE}
        dtype = d.choice(same[kind_of(x.dtype)])
        operands[k] = replace(x, dtype=dtype)
        return Change(f"{x.name} of {dtype}", tuple(operands))
    if what == "strides":
        layouts = [n for n, f in arrays.LAYOUTS.items() if f(x.full_shape) is not None]
        layout = d.choice([n for n in layouts if n != "unaligned"])
        operands[k] = replace(x, layout=layout)
        return Change(f"{x.name} {layout}", tuple(operands))
    if what == "batch" and any(x.batch for x in operands):
        extent = d.choice((0, 1, 2, 6))
        operands = [
            replace(x, batch=(x.batch[0], extent)) if x.batch else x for x in operands
        ]
        return Change(f"a mapped axis of {extent}", tuple(operands))
    operands[k] = replace(x, seed=x.seed + 1)
    return Change("other values", tuple(operands))
