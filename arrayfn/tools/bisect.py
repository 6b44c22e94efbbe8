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
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from typing_extensions import override

from arrayfn import dtypes, tree
from arrayfn.backends.base import Backend, Executable
from arrayfn.backends.registry import choose
from arrayfn.errors import SourceLocation, readable_file
from arrayfn.ir import Atom, Equation, Program, Var
from arrayfn.ir.format import equation_lines, format_program
from arrayfn.ir.layout import C
from arrayfn.lowering.operator_kernels import KERNELS
from arrayfn.passes.inline_calls import inline_calls
from arrayfn.primitives.calls import evaluate
from arrayfn.tools.oracle import Judged, oracle, violated
from arrayfn.transforms import make_program

Array = np.ndarray[Any, Any]
_MOST_ITERATIONS: Final = 10_000  # of a loop that is searched
_DEPTHS: Final = (1,)  # equations back, that a doubtful result is judged by
_DEPTHS_OF_HALVES: Final = (1, 3, 6)  # which kernels do not round one by one


@dataclass(frozen=True)
class Fault:
    """The first equation that is wrong (``"wrong"``) or gives NaN (``"nan"``).

    ``text`` is the equation in the Program, and ``location`` is the user's line.
    ``index`` is the place in a result where the error is largest, or where NaN is
    first. There the backend has ``have``, and the float64 oracle has ``want``, within
    ``bound``. ``operands`` describes the operands of the equation. ``inside`` names the
    loops and branches around it, outermost first, with the iteration. ``fused`` says
    that the fault disappears if intermediate values are results. Then the fault is in
    the kernel that computes this equation together with others.
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
        self.backend = backend
        self.loaded: dict[tuple[int, int], tuple[Program, Executable]] = {}

    def run(self, program: Program, inputs: Sequence[Array], upto: int) -> list[Array]:
        """Run the first ``upto`` equations; returns the results of each of them."""
        key = id(program), upto
        if key not in self.loaded:
            outputs = [v for eq in program.equations[:upto] for v in eq.outputs]
            whole = replace(
                program, equations=program.equations[:upto], outputs=tuple(outputs)
            )
            compiled = self.backend.lower(whole, frozenset())
            # The Program is kept too, so that its id stays its own.
            self.loaded[key] = program, self.backend.load(compiled)
        return self.results(self.loaded[key][1], program, inputs)

    def stored(self, program: Program, inputs: Sequence[Array]) -> dict[Atom, Array]:
        """The values of all Vars of ``program``, each of which is an output."""
        values: dict[Atom, Array] = dict(zip(program.inputs, inputs, strict=True))
        values |= zip(program.constants, program.constant_values, strict=True)
        made = self.run(program, inputs, len(program.equations))
        variables = (v for eq in program.equations for v in eq.outputs)
        return values | dict(zip(variables, made, strict=True))

    def results(
        self, run: Executable, program: Program, inputs: Sequence[Array]
    ) -> list[Array]:
        """Call ``run`` on ``inputs``, copied to the layouts that ``program`` says."""
        types = program.input_types
        given = tuple(
            np.asarray(x, order="C") if t.layout == C else x
            for x, t in zip(inputs, types, strict=True)
        )
        return [np.asarray(x) for x in run(given)]

    def first(self, program: Program, inputs: Sequence[Array]) -> Fault | None:
        """The first fault of ``program`` when each of its values is an output."""
        if not program.equations:
            return None
        values = self.stored(program, inputs)
        source = _source_of_nan(program, values)
        for equation in program.equations:
            operands = [_value(a, values) for a in equation.inputs]
            results = [values[v] for v in equation.outputs]
            fault = _wrong(program, equation, values)
            if fault is None and equation is source:
                fault = _nan(program, equation, operands, results)
            if fault is not None:
                return self.inside(equation, operands) or fault
        return None

    def inside(self, equation: Equation, operands: Sequence[Array]) -> Fault | None:
        """The first fault in the bodies of a loop or branch, iteration by iteration."""
        place = f" at {equation.source}" if equation.source else ""
        for number, (body, given) in enumerate(_bodies(equation, operands)):
            if number >= _MOST_ITERATIONS:
                return None
            fault = self.first(body, given)
            if fault is not None:
                name = equation.primitive.name
                part = "" if name == "cond" else f"iteration {number} of "
                return replace(fault, inside=(f"{part}{name}{place}", *fault.inside))
        return None

    def fused(self, program: Program, inputs: Sequence[Array]) -> Fault | None:
        """The first equation that is wrong only when computed with earlier ones.

        Prefixes of the Program are run with the last equation's values as only results,
        so that the backend fuses it with what comes before. If the results of the whole
        Program are right, so are all.
        """
        compiled = self.backend.load(self.backend.lower(program, frozenset()))
        results = self.results(compiled, program, inputs)
        # Stored values have been judged one by one.
        stored = self.stored(program, inputs)
        pairs = list(zip(program.outputs, results, strict=True))
        if all(a in stored and stored[a].tobytes() == x.tobytes() for a, x in pairs):
            return None
        if not violated(oracle(program, inputs, have=results), results):
            return None
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
        """Run the first ``upto`` equations; the fault of the last of them, or None."""
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
    """The Programs that a loop or branch runs, in order, each with its inputs."""
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
            given = [*consts, *carry, *(x[k] for x in operands[split:])]
            yield body, given
            carry = _evaluated(body, given)[: len(carry)]
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


def _value(atom: Atom, values: dict[Atom, Array]) -> Array:
    """The array of ``atom``: that of a Var in ``values``, or a Literal's."""
    if isinstance(atom, Var):
        return values[atom]
    return np.asarray(atom.value).astype(atom.type.dtype)


def _has_nan(x: Array) -> bool:
    return x.dtype in dtypes.INEXACT and bool(np.isnan(_wide(x)).any())


def _source_of_nan(program: Program, values: dict[Atom, Array]) -> Equation | None:
    """The equation in which a NaN that reaches a result arises.

    A result of it has a NaN, and none of its operands does. None if no result has a
    NaN.
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
    """A Program of only ``equation``, whose inputs are its operands."""
    given = tuple(Var(a.type) for a in equation.inputs)
    outputs = tuple(Var(v.type) for v in equation.outputs)
    same = Equation(
        equation.primitive, given, equation.params, outputs, equation.source
    )
    return Program(equation.primitive.name, given, (same,), outputs)


def _wrong(
    program: Program, equation: Equation, values: dict[Atom, Array]
) -> Fault | None:
    """The fault of ``equation`` if its results exceed the oracle's bounds, else None.

    Passes rewrite equations, and kernels compute values again, in another order or
    without rounding them to 16 bits. So results may differ from those of the stored
    operands. They are wrong if they also differ from what the equations of the
    operands, some levels back, give.
    """
    if equation.primitive.name in ("pure_callback", "debug_callback"):
        return None
    operands = [_value(a, values) for a in equation.inputs]
    results = [values[v] for v in equation.outputs]
    alone = _single(equation)
    with np.errstate(all="ignore"):
        judged = oracle(alone, operands, have=results)
        halves = any(v.type.dtype in dtypes.HALF_PRECISION for v in values)
        for depth in _DEPTHS_OF_HALVES if halves else _DEPTHS:
            if not violated(judged, results):
                return None
            around = _around(program, equation, depth)
            given = [values[v] for v in around.inputs]
            judged = oracle(around, given, have=results)
    if not violated(judged, results):
        return None
    return _fault_of(program, equation, operands, results, judged)


def _around(program: Program, equation: Equation, depth: int) -> Program:
    """A Program of ``equation`` and those that compute its operands.

    It goes ``depth`` levels back.
    """
    definitions = program.definitions()
    kept = {equation}
    last = [equation]
    for _ in range(depth):
        atoms = {a for eq in last for a in eq.inputs if isinstance(a, Var)}
        last = [definitions[v] for v in atoms if v in definitions]
        kept.update(last)
    equations = tuple(eq for eq in program.equations if eq in kept)
    made = {v for eq in equations for v in eq.outputs}
    used = dict.fromkeys(a for eq in equations for a in eq.inputs)
    given = tuple(a for a in used if isinstance(a, Var) and a not in made)
    return Program(program.name, given, equations, equation.outputs)


def _nan(
    program: Program,
    equation: Equation,
    operands: Sequence[Array],
    results: Sequence[Array],
) -> Fault:
    """The fault of ``equation``, the first whose results have a NaN."""
    with np.errstate(all="ignore"):
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

    ``judged`` are the oracle's verdicts on ``results``.
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
            apart = np.nan_to_num(np.abs(_wide(have) - _wide(shadow.value)), nan=np.inf)
            apart = np.where(mask, apart, -1.0)
        index = tuple(int(k) for k in np.unravel_index(np.argmax(apart), have.shape))
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
    """The line of the Program's text that shows ``equation``."""
    lines = format_program(program, comments=False).splitlines()
    for number, found in equation_lines(program):
        if found is equation:
            return lines[number - 1].strip()
    return equation.primitive.name


def _wide(x: Array) -> Array:
    """``x`` in double precision; integers as floats."""
    return x.astype(np.complex128 if x.dtype in dtypes.COMPLEX else np.float64)


def _described(
    program: Program,
    equation: Equation,
    operands: Sequence[Array],
    result: int,
    index: tuple[int, ...],
) -> Iterator[str]:
    """What the equation's operands are: elements at ``index``, or their range."""
    makers = program.definitions()
    for number, (atom, x) in enumerate(zip(equation.inputs, operands, strict=True)):
        text = f"operand {number}: {atom.type}"
        maker = makers.get(atom) if isinstance(atom, Var) else None
        if maker is not None and x.dtype in dtypes.INEXACT and np.isinf(_wide(x)).any():
            text += f" of {_text_of(program, maker)} ({maker.source}),"
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
