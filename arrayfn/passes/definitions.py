"""The equations of the Program under construction, by the Vars that they define."""

from __future__ import annotations

from arrayfn.ir import Atom, Equation, Var
from arrayfn.ir.builder import current_builder


class Definitions:
    """Finds the equation that defines a Var, in the builder that a pass emits into.

    One instance serves one Program. It reads new equations at each call.
    """

    def __init__(self) -> None:
        self._by_var: dict[Var, Equation] = {}
        self._seen = 0  # equations of the builder that are in ``_by_var``

    def of(self, atom: Atom) -> Equation | None:
        """Return the equation that makes ``atom``.

        None for an input and for a Literal.
        """
        if not isinstance(atom, Var):
            return None
        equations = current_builder().equations
        for emitted in equations[self._seen :]:
            self._by_var.update(dict.fromkeys(emitted.outputs, emitted))
        self._seen = len(equations)
        return self._by_var.get(atom)
