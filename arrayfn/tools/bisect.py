"""``bisect(f, *args)``: the first equation of a function that is wrong, or gives NaN.

The Program runs on a backend with every intermediate value as a result. Each equation
is then judged by itself: its results against the same equation in float64 on the
operands that the backend had, within the bound of the oracle. So errors that operands
bring along do not count, and a fault is found where it is, not where it shows. A result
that fails is judged again together with the equations that make its operands. Of a loop
the faulty iteration is searched in the same way, and of a branch the one taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
from typing_extensions import override

from arrayfn import dtypes, tree
from arrayfn.backends.base import Backend, Executable
from arrayfn.backends.registry import choose
from arrayfn.errors import SourceLocation, readable_file
from arrayfn.ir import Equation, Program, Var, entry_of
from arrayfn.ir.format import equation_lines, format_program
from arrayfn.ir.layout import C
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.passes.inline_calls import inline_calls
from arrayfn.primitives.calls import array_of_atom, evaluate
from arrayfn.records import frozen
from arrayfn.tools.oracle import Judged, oracle, violated
from arrayfn.transforms import make_program

Array = np.ndarray[Any, Any]
_MOST_ITERATIONS: Final = 10_000  # of a loop that is searched
# How many levels of the operands' equations a doubtful result is judged together with.
_DEPTHS: Final = (1,)
# In Programs with 16-bit floats, of which kernels do not round each result.
_DEPTHS_OF_HALVES: Final = (1, 3, 6)


@frozen
class Fault:
    """The first equation that is wrong or gives NaN.

    Attributes:
        kind: "wrong" or "nan".
        equation: the equation.
        text: the equation's line in the Program's text.
        index: the place in a result where the error is largest, or where NaN is first.
        have: the element there that the backend computed.
        want: the element there by the float64 oracle.
        bound: the error that is allowed there.
        operands: descriptions of the operands of the equation.
        inside: the loops and branches around the equation, outermost first, with the
            iteration.
        fused: whether the fault disappears if intermediate values are results. Then it
            is in the kernel that computes this equation together with others.
    """

    kind: Literal["wrong", "nan"]
    equation: Equation
    text: str
    index: tuple[int, ...]
    have: Any
    want: Any
    bound: float
    operands: tuple[str, ...]
    inside: tuple[str, ...] = ()
    fused: bool = False

    @property
    def location(self) -> SourceLocation | None:
        """The user's line."""
        return self.equation.source

    @override
    def __str__(self) -> str:
        """Describe the fault: where, what, the values there, and the operands."""
        what = "gives NaN" if self.kind == "nan" else "is wrong"
        place = self.location
        where = f"{readable_file(place.file)}:{place.line}: " if place else ""
        at = f" at {list(self.index)}" if self.index else ""
        within = "" if self.kind == "nan" else f" within {self.bound:.3g}"
        lines = [f"{where}{self.equation.primitive.name} {what}{at}: {self.text}"]
        lines += [f"  in {outer}" for outer in self.inside]
        lines.append(f"  it gives {self.have}; float64 gives {self.want}{within}")
        lines += [f"  {operand}" for operand in self.operands]
        if self.fused:
            lines.append(
                "  only as a part of a fused kernel: with its result stored it is right"
            )
        return "\n".join(lines)


def bisect(
    function: Callable[..., Any], *args: Any, device: str = "cpu", **kwargs: Any
) -> Fault | None:
    """Find the first equation of ``function`` that is wrong or gives NaN on ``device``.

    The result is None if no equation is wrong and no result has a NaN. Gradients can be
    searched like other functions. ``bisect(grad(f), x)`` also searches the backward
    pass, whose equations have the lines of ``f`` that they come from. A NaN is reported
    only if it reaches a result. The search depends on the values: with other arguments,
    another equation may be the first.

    An equation is wrong if its own error exceeds the oracle's bound. The bound is a few
    units in the last place. For sums and factorizations, the bound is the error that
    any order of operations may give. Integers and bools must be exact. Python functions
    that a Program calls (``pure_callback``) are called several times.

    >>> import numpy as np
    >>> import arrayfn as af, arrayfn.numpy as anp
    >>> def norm(x):
    ...     return anp.sqrt(anp.sum(x * x))
    >>> print(bisect(af.grad(norm), np.zeros(3)))  # doctest: +ELLIPSIS
    <doctest ...>:2: mul gives NaN at [0]: ... = mul(...)
      it gives nan; float64 gives nan
      ...
    >>> print(bisect(af.grad(norm), np.ones(3)))
    None
    """
    backend = choose(device)
    program = inline_calls(
        make_program(function)(*args, **kwargs),
        keep=lambda call: KERNELS.for_call(call, backend.name) is not None,
    )
    leaves = tree.leaves((args, kwargs))
    types = program.input_types
    inputs = [np.asarray(x, t.dtype) for x, t in zip(leaves, types, strict=True)]
    search = _Search(backend)
    return search.first(program, inputs) or search.fused(program, inputs)


class _Search:
    """Searches Programs for their first fault on ``backend``; caches compilations."""

    def __init__(self, backend: Backend) -> None:
        """Begin with an empty cache."""
        self.backend = backend
        # By id of the Program, and the number of equations that are run.
        self.loaded: dict[tuple[int, int], tuple[Program, Executable]] = {}

    def run(self, program: Program, inputs: Sequence[Array], upto: int) -> list[Array]:
        """Run the first ``upto`` equations; return the results of all of them."""
        key = id(program), upto
        if key not in self.loaded:
            outputs = [v for eq in program.equations[:upto] for v in eq.outputs]
            whole = replace(
                program, equations=program.equations[:upto], outputs=tuple(outputs)
            )
            compiled = self.backend.lower(whole, frozenset())
            # The Program is stored too: while it lives, no other object has its id.
            self.loaded[key] = program, self.backend.load(compiled)
        _, executable = self.loaded[key]
        return self.results(executable, program, inputs)

    def stored(self, program: Program, inputs: Sequence[Array]) -> dict[Var, Array]:
        """Run ``program`` with all Vars as outputs; return the value of each Var."""
        values: dict[Var, Array] = dict(zip(program.inputs, inputs, strict=True))
        values |= program.constant_pairs()
        results = self.run(program, inputs, len(program.equations))
        variables = (v for eq in program.equations for v in eq.outputs)
        return values | dict(zip(variables, results, strict=True))

    def results(
        self, run: Executable, program: Program, inputs: Sequence[Array]
    ) -> list[Array]:
        """Call ``run`` on ``inputs``; copy those that ``program`` takes row-major."""
        types = program.input_types
        arguments = tuple(
            np.asarray(x, order="C") if t.layout == C else x
            for x, t in zip(inputs, types, strict=True)
        )
        return [np.asarray(x) for x in run(arguments)]

    def first(self, program: Program, inputs: Sequence[Array]) -> Fault | None:
        """Return the first fault of ``program`` when each of its values is an output.

        If the faulty equation is a loop or branch, the fault inside its body is
        returned, if there is one.
        """
        if not program.equations:
            return None
        values = self.stored(program, inputs)
        source = _source_of_nan(program, values)
        for equation in program.equations:
            operands = [array_of_atom(a, values) for a in equation.inputs]
            results = [values[v] for v in equation.outputs]
            fault = _wrong(program, equation, values)
            if fault is None and equation is source:
                fault = _nan(program, equation, operands, results)
            if fault is not None:
                return self.inside(equation, operands) or fault
        return None

    def inside(self, equation: Equation, operands: Sequence[Array]) -> Fault | None:
        """Return the first fault in the bodies that a loop or branch runs, in order.

        Returns None if there is none in the first 10000 bodies, or if ``equation`` is
        no loop or branch.
        """
        place = f" at {equation.source}" if equation.source else ""
        for number, (body, body_inputs) in enumerate(_bodies(equation, operands)):
            if number >= _MOST_ITERATIONS:
                return None
            fault = self.first(body, body_inputs)
            if fault is not None:
                name = equation.primitive.name
                part = "" if name == "cond" else f"iteration {number} of "
                return replace(fault, inside=(f"{part}{name}{place}", *fault.inside))
        return None

    def fused(self, program: Program, inputs: Sequence[Array]) -> Fault | None:
        """Return the first equation that is wrong only in a kernel with earlier ones.

        Prefixes of the Program are run with the results of their last equation as only
        outputs, so that the backend fuses it with what comes before. A binary search
        finds the first prefix that is wrong. Returns None if the outputs of the whole
        Program are right.
        """
        compiled = self.backend.load(self.backend.lower(program, frozenset()))
        results = self.results(compiled, program, inputs)
        # Outputs equal to the stored values are right, as these have been judged.
        stored = self.stored(program, inputs)
        pairs = list(zip(program.outputs, results, strict=True))
        if all(a in stored and stored[a].tobytes() == x.tobytes() for a, x in pairs):
            return None
        if not violated(oracle(program, inputs, have=results), results):
            return None
        # The prefix of ``low`` equations is right, that of ``high`` equations is wrong.
        low, high = 0, len(program.equations)
        while high - low > 1:
            middle = (low + high) // 2
            if self._prefix_fault(program, inputs, middle) is None:
                low = middle
            else:
                high = middle
        return self._prefix_fault(program, inputs, high)

    def _prefix_fault(
        self, program: Program, inputs: Sequence[Array], upto: int
    ) -> Fault | None:
        """Run the first ``upto`` equations; return the last one's fault, or None.

        For the whole Program the fault is always returned.
        """
        equation = program.equations[upto - 1]
        whole = replace(
            program, equations=program.equations[:upto], outputs=equation.outputs
        )
        run = self.backend.load(self.backend.lower(whole, frozenset()))
        results = self.results(run, program, inputs)
        judged = oracle(whole, inputs, have=results)
        if upto < len(program.equations) and not violated(judged, results):
            return None
        before = replace(
            program, equations=program.equations[: upto - 1], outputs=equation.inputs
        )
        operands = _evaluated(before, inputs)
        fault = _fault_of(program, equation, operands, results, judged)
        return replace(fault, fused=True)


def _bodies(
    equation: Equation, operands: Sequence[Array]
) -> Iterator[tuple[Program, list[Array]]]:
    """Yield (Program, inputs) for each Program that a loop or branch runs, in order.

    Of a while_loop these are its condition and its body in turn. Carries are computed
    by the NumPy references.
    """
    params, name = equation.params, equation.primitive.name
    if name == "cond":
        branches: tuple[Program, ...] = params["branches"]
        index = min(max(int(operands[0]), 0), len(branches) - 1)
        yield branches[index], list(operands[1:])
    elif name == "scan":
        body: Program = params["program"]
        first, split = params["consts"], params["consts"] + params["carry"]
        consts, carry = list(operands[:first]), list(operands[first:split])
        order = range(params["length"])
        for k in reversed(order) if params["reverse"] else order:
            body_inputs = [*consts, *carry, *(x[k] for x in operands[split:])]
            yield body, body_inputs
            carry = _evaluated(body, body_inputs)[: len(carry)]
    elif name == "while_loop":
        of_cond, of_body = params["cond_consts"], params["body_consts"]
        test: Program = params["cond_program"]
        body = params["body_program"]
        conditions = list(operands[:of_cond])
        consts = list(operands[of_cond : of_cond + of_body])
        carry = list(operands[of_cond + of_body :])
        while True:
            yield test, [*conditions, *carry]
            if not _evaluated(test, [*conditions, *carry])[0]:
                return
            yield body, [*consts, *carry]
            carry = _evaluated(body, [*consts, *carry])


def _evaluated(program: Program, inputs: Sequence[Array]) -> list[Array]:
    """Evaluate ``program`` by the primitives' references, in its own dtypes."""
    with np.errstate(all="ignore"):
        return [np.asarray(x) for x in evaluate(program, inputs)]


def _has_nan(x: Array) -> bool:
    """Whether ``x`` has a NaN; arrays of integers and bools have none."""
    return x.dtype in dtypes.INEXACT and bool(np.isnan(_wide(x)).any())


def _source_of_nan(program: Program, values: dict[Var, Array]) -> Equation | None:
    """Return the equation in which a NaN arises that reaches an output of ``program``.

    From an output with NaN, goes back to an operand with NaN until an equation has
    none. Returns None if no output has a NaN, or if it comes from an input.
    """
    definitions = program.definitions()
    for atom in program.outputs:
        while isinstance(atom, Var) and atom in definitions and _has_nan(values[atom]):
            equation = definitions[atom]
            behind = (a for a in equation.inputs if isinstance(a, Var))
            following = next((a for a in behind if _has_nan(values[a])), None)
            if following is None:
                return equation
            atom = following
    return None


def _single(equation: Equation) -> Program:
    """Return a Program of a copy of ``equation``, whose inputs are the operands."""
    inputs = tuple(Var(a.type) for a in equation.inputs)
    outputs = tuple(Var(v.type) for v in equation.outputs)
    copy = Equation(
        equation.primitive, inputs, equation.params, outputs, equation.source
    )
    return Program(equation.primitive.name, inputs, (copy,), outputs)


def _wrong(
    program: Program, equation: Equation, values: dict[Var, Array]
) -> Fault | None:
    """Return the fault of ``equation`` if its results exceed the bounds, else None.

    First the oracle judges ``equation`` by itself, on the stored ``values`` of its
    operands. But a kernel may compute an operand again, in another order or without
    rounding it to 16 bits, so right results may differ from these. Results that fail
    are judged again by a Program of the equation and those of its operands, some levels
    back. They are wrong if they fail at all depths.
    """
    if equation.primitive.name in ("pure_callback", "debug_callback"):
        return None
    operands = [array_of_atom(a, values) for a in equation.inputs]
    results = [values[v] for v in equation.outputs]
    with np.errstate(all="ignore"):
        judged = oracle(_single(equation), operands, have=results)
        halves = any(v.type.dtype in dtypes.HALF_PRECISION for v in values)
        for depth in _DEPTHS_OF_HALVES if halves else _DEPTHS:
            if not violated(judged, results):
                return None
            around = _around(program, equation, depth)
            inputs = [values[v] for v in around.inputs]
            judged = oracle(around, inputs, have=results)
    if not violated(judged, results):
        return None
    return _fault_of(program, equation, operands, results, judged)


def _around(program: Program, equation: Equation, depth: int) -> Program:
    """Return a Program of ``equation`` and the equations that compute its operands.

    With ``depth`` 2 it also has the equations that compute the latter's operands, and
    so on. Its inputs are the Vars that these equations read from outside.
    """
    definitions = program.definitions()
    chosen = {equation}
    last = [equation]
    for _ in range(depth):
        atoms = {a for eq in last for a in eq.inputs if isinstance(a, Var)}
        last = [definitions[v] for v in atoms if v in definitions]
        chosen.update(last)
    equations = tuple(eq for eq in program.equations if eq in chosen)
    defined = {v for eq in equations for v in eq.outputs}
    used = dict.fromkeys(a for eq in equations for a in eq.inputs)
    inputs = tuple(a for a in used if isinstance(a, Var) and a not in defined)
    return Program(program.name, inputs, equations, equation.outputs)


def _nan(
    program: Program,
    equation: Equation,
    operands: Sequence[Array],
    results: Sequence[Array],
) -> Fault:
    """Return the fault of ``equation``, whose ``results`` have a NaN."""
    with np.errstate(all="ignore"):
        # Only the values are shown, not the bounds, so no runs are needed.
        judged = oracle(_single(equation), operands, samples=0)
    return _fault_of(program, equation, operands, results, judged, kind="nan")


def _fault_of(
    program: Program,
    equation: Equation,
    operands: Sequence[Array],
    results: Sequence[Array],
    judged: Sequence[Judged],
    kind: Literal["wrong", "nan"] = "wrong",
) -> Fault:
    """Describe the fault of ``equation`` at the element with the largest error.

    The element is one outside its bound, or for kind "nan" one that is NaN. ``judged``
    has the oracle's value and bound of each of ``results``.
    """
    masks = [
        np.isnan(_wide(r)) if kind == "nan" else j.violations(r)
        for j, r in zip(judged, results, strict=True)
    ]
    number = next((k for k, mask in enumerate(masks) if mask.any()), 0)
    have, shadow, mask = results[number], judged[number], masks[number]
    index: tuple[int, ...] = ()
    if have.size:
        with np.errstate(all="ignore"):
            error = np.nan_to_num(np.abs(_wide(have) - _wide(shadow.value)), nan=np.inf)
            error = np.where(mask, error, -1.0)  # elements that are right come last
        index = tuple(int(k) for k in np.unravel_index(np.argmax(error), have.shape))
    return Fault(
        kind,
        equation,
        _text_of(program, equation),
        index,
        have[index] if have.size else None,
        shadow.value[index] if have.size else None,
        float(np.real(shadow.bound[index])) if have.size else 0.0,
        tuple(_described(program, equation, operands, number, index)),
    )


def _text_of(program: Program, equation: Equation) -> str:
    """Return the line of the Program's text that shows ``equation``.

    Returns the primitive's name for an equation that is not in ``program``.
    """
    lines = format_program(program, comments=False).splitlines()
    for number, other in equation_lines(program):
        if other is equation:
            return lines[number - 1].strip()
    return equation.primitive.name


def _wide(x: Array) -> Array:
    """Convert ``x`` to float64, or to complex128 if it is complex."""
    return x.astype(dtypes.widest(x.dtype))


def _described(
    program: Program,
    equation: Equation,
    operands: Sequence[Array],
    result: int,
    index: tuple[int, ...],
) -> Iterator[str]:
    """Yield a text for each operand of ``equation``: its type, and what its values are.

    For an operand of the shape of result number ``result``, this is the element at
    ``index``, else the only element, or the range of floats. An operand with infinities
    is shown with the equation that defines it.
    """
    definitions = program.definitions()
    for number, (atom, x) in enumerate(zip(equation.inputs, operands, strict=True)):
        text = f"operand {number}: {atom.type}"
        definition = entry_of(atom, definitions)
        has_infinity = x.dtype in dtypes.INEXACT and np.isinf(_wide(x)).any()
        if definition is not None and has_infinity:
            text += f" of {_text_of(program, definition)} ({definition.source}),"
        if x.shape == equation.outputs[result].type.shape and x.size:
            yield f"{text} with {x[index]} there"
        elif x.size == 1:
            yield f"{text} {x.reshape(-1)[0]}"
        elif x.size and x.dtype in dtypes.FLOATS:
            wide = _wide(x)
            odd = int((~np.isfinite(wide)).sum())
            some = f", {odd} not finite" if odd else ""
            yield f"{text} from {np.nanmin(wide):.4g} to {np.nanmax(wide):.4g}{some}"
        else:
            yield text
