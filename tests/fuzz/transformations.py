"""What is done to a drawn function before it is compiled: nothing, grad, vmap, ..."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

OF_A_LOSS: Final = (
    *("grad", "value_and_grad", "hessian"),
    *("vmap_grad", "grad_vmap"),
)
DIRECTIONAL: Final = ("jvp", "vjp", "jacfwd", "jacrev")
MAPPED: Final = ("vmap", "vmap_grad", "grad_vmap")
LOSSES: Final = (
    "anp.sum({})",
    "anp.sum({})",
    "anp.mean({})",
    "0.5 * anp.sum({0} * {0})",
    "anp.sum(anp.sin({}))",
    "-anp.sum(anp.abs({}))",
)


@dataclass(frozen=True)
class Transformation:
    """``kind`` applied to the function, or to a loss made of its outputs.

    ``wrt`` names the arguments of derivatives; ``losses`` what is summed, by output;
    ``around`` is a call around the inner function; ``out_axis`` where vmap puts the
    mapped axis.
    """

    kind: str = "plain"
    wrt: tuple[str, ...] = ()
    losses: tuple[tuple[str, str], ...] = ()
    around: str = ""
    out_axis: int = 0

    @property
    def needs(self) -> tuple[str, ...]:
        """Arguments that must stay."""
        return self.wrt

    def source(self, case: Any) -> list[str]:
        """Lines that define ``run``."""
        names = [x.name for x in case.arguments]
        lines: list[str] = []
        inner = "f"
        if self.kind in OF_A_LOSS:
            lines += self._loss(names, case.outputs)
            inner = "loss"
        elif self.kind in DIRECTIONAL:
            lines += self._inexact(names, case.outputs)
            inner = "part"
        if self.around:
            inner = f"{self.around}({inner})"
        return [*lines, f"run = {self._call(inner, names, case.arguments)}"]

    def _call(self, inner: str, names: list[str], operands: Sequence[Any]) -> str:
        places = [names.index(name) for name in self.wrt]
        argnums = str(places[0]) if len(places) == 1 else str(tuple(places))
        axes = tuple(None if x.batch is None else x.batch[0] for x in operands)
        everything = ", ".join(names)
        moved = ", ".join(self.wrt)
        if self.kind == "plain":
            return inner
        if self.kind in ("grad", "value_and_grad", "hessian", "jacfwd", "jacrev"):
            return f"af.{self.kind}({inner}, argnums={argnums})"
        if self.kind == "vmap":
            return f"af.vmap({inner}, in_axes={axes}, out_axes={self.out_axis})"
        if self.kind == "vmap_grad":
            return f"af.vmap(af.grad({inner}, argnums={argnums}), in_axes={axes})"
        if self.kind == "grad_vmap":
            return (
                f"af.grad(lambda {everything}: anp.sum(af.vmap({inner}, "
                f"in_axes={axes})({everything})), argnums={argnums})"
            )
        of_moved = f"lambda {moved}: {inner}({everything})"
        if self.kind == "jvp":
            tangents = "".join(f"anp.ones_like({x}), " for x in self.wrt)
            return f"lambda {everything}: af.jvp({of_moved}, ({moved},), ({tangents}))"
        assert self.kind == "vjp"
        return (
            f"lambda {everything}: (lambda ys, pull: "
            f"pull(af.tree.map(anp.ones_like, ys)))(*af.vjp({of_moved}, {moved}))"
        )

    def _loss(self, names: list[str], outputs: Sequence[str]) -> list[str]:
        terms = dict(self.losses)
        sums = [terms[y].format(y) for y in outputs if y in terms]
        taken = ", ".join(y if y in terms else "_" for y in outputs)
        return [
            f"def loss({', '.join(names)}):",
            f"    {taken} = f({', '.join(names)})",
            f"    return {' + '.join(sums)}",
        ]

    def _inexact(self, names: list[str], outputs: Sequence[str]) -> list[str]:
        terms = dict(self.losses)
        kept = [y for y in outputs if y in terms]
        if len(kept) == len(outputs):
            return ["part = f"]
        taken = ", ".join(y if y in terms else "_" for y in outputs)
        return [
            f"def part({', '.join(names)}):",
            f"    {taken} = f({', '.join(names)})",
            f"    return {', '.join(kept)}",
        ]
