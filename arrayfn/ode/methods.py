"""Methods: one step of an ordinary differential equation, with its error.

A method advances a vector y over h: ``step`` gives the new y, an estimate of its error
relative to a scale, and the stages. Of these ``dense`` makes the coefficients of an
interpolant, which ``evaluate`` evaluates inside the step.

Sources: Dormand and Prince, A family of embedded Runge-Kutta formulae (1980); Shampine,
Some practical Runge-Kutta formulas (1986), for the interpolant; Bogacki and Shampine, A
3(2) pair of Runge-Kutta formulas (1989); Hairer, Norsett and Wanner, Solving Ordinary
Differential Equations I (1993), section II.5, for DOP853.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

import arrayfn.numpy as anp
from arrayfn import lax
from arrayfn.numpy._operands import Array
from arrayfn.records import frozen
from arrayfn.transforms import leaf_type

Function = Callable[[Array, Array], Array]
"""f(t, y), the derivative of the vector y."""

Row = tuple[float, ...]  # the weights of stages


class Step(NamedTuple):
    """The result of one step.

    ``y`` is the value at its end. ``f`` is the slope there, for methods whose steps
    begin with the slope, and without meaning for others. ``error`` is the norm of the
    error relative to the allowed one, so at most 1 is accepted. ``stages`` are the
    method's, (stages, n).
    """

    y: Array
    f: Array
    error: Array
    stages: Array


class Method(Protocol):
    """What the stepping loop needs to know of a method."""

    @property
    def order(self) -> int:
        """The order p of the error estimate: a step's error is of order h**(p + 1)."""
        ...

    @property
    def stages(self) -> int:
        """The number of stages, vectors that a step keeps for the interpolant."""
        ...

    @property
    def evaluations(self) -> int:
        """The number of calls of f in a step, except those for the Jacobian."""
        ...

    def step(
        self, f: Function, t: Array, y: Array, fy: Array, h: Array, scale: Scale
    ) -> Step:
        """Do a step of length h from (t, y); ``fy`` is f(t, y) if the method needs it.

        ``scale`` gives the allowed error of each element.
        """
        ...

    @property
    def coefficients(self) -> int:
        """The number of vectors of the interpolant."""
        ...

    def dense(
        self, f: Function, t: Array, h: Array, y: Array, end: Array, stages: Array
    ) -> Array:
        """Return the interpolant's coefficients (coefficients, n) for a step.

        The step is from (t, y) over h to ``end``. ``stages`` are those of the step, and
        ``f`` is the equation's slope.
        """
        ...

    def evaluate(self, coefficients: Array, y: Array, at: Array) -> Array:
        """Return y at the fraction ``at``, in [0, 1], of the step that began with y."""
        ...


Scale = Callable[[Array, Array], Array]
"""(y at the begin, y at the end of a step) -> the allowed error of each element"""


def norm(x: Array) -> Array:
    """Return the root mean square of the elements of a vector; 0 for none."""
    size = max(1, x.shape[0])
    return anp.sqrt(anp.sum(anp.abs(x) ** 2) / size)


def padded(rows: Sequence[Row], width: int) -> np.ndarray[Any, Any]:
    """Fill rows of coefficients with zeros to ``width``, and return a matrix."""
    return np.array([[*row, *[0.0] * width][:width] for row in rows])


def weighted(weights: Any, stages: Array) -> Array:
    """Return the sum of stages (s, n) with weights (s,), or several sums."""
    return anp.matmul(anp.astype(anp.asarray(weights), _real(stages)), stages)


def _real(y: Array) -> Any:
    """Return the real dtype of the precision of y."""
    return anp.finfo(y.dtype).dtype


def of_dtype(h: Array, y: Array) -> Array:
    """Convert a time to the real dtype of the precision of y."""
    return anp.astype(h, _real(y))


@frozen(eq=False)
class RungeKutta:
    """An explicit embedded Runge-Kutta pair, whose last stage is the slope at the end.

    ``order`` is the order of the error estimate; the step's is one higher.

    Stage i is f(t + nodes[i] h, y + h matrix[i] . stages), and the step adds h weights
    . stages. ``errors`` has the weights of an error estimate, or of two, as DOP853
    combines them. The interpolant is a polynomial in the fraction ``at`` of the step:
    each row of ``powers`` has a stage's weights of at, at**2, ... Without ``powers`` it
    is DOP853's, which has ``extra`` stages (node, row) of its own, and coefficients
    that are ``products`` of a matrix and the stages.
    """

    order: int
    nodes: Row
    matrix: tuple[Row, ...]
    weights: Row
    errors: tuple[Row, ...]
    powers: tuple[Row, ...] = ()
    extra: tuple[tuple[float, Row], ...] = ()
    products: tuple[Row, ...] = ()

    @property
    def stages(self) -> int:
        """The number of stages, with the slope at the end."""
        return len(self.weights) + 1

    @property
    def evaluations(self) -> int:
        """The number of calls of f in a step; the first stage is known."""
        return len(self.weights)

    def step(
        self, f: Function, t: Array, y: Array, fy: Array, h: Array, scale: Scale
    ) -> Step:
        """Do a step: compute all stages, the end, and the error estimate.

        See ``Method.step`` for the parameters.
        """
        all_stages = anp.zeros((self.stages, *y.shape), y.dtype)
        # The first stage is the slope at y. The last stage is the slope at the end, so
        # its row has the weights of the step.
        rows = (*self.matrix[1:], self.weights)
        nodes = (*self.nodes[1:], 1.0)
        known = anp.at(all_stages)[0].set(fy)
        stages, end = self._staged(f, t, h, y, known, first=1, rows=rows, nodes=nodes)
        allowed = scale(y, end)
        errors = weighted(padded(self.errors, self.stages), stages)
        first, *others = [norm(errors[k] / allowed) for k in range(len(self.errors))]
        error = anp.abs(of_dtype(h, y)) * first
        if others:
            # Combine estimates of order 5 and 3 (Hairer, Norsett and Wanner, II.10):
            # |h| e5**2 / sqrt(e5**2 + 0.01 e3**2), and 0 if both are 0.
            (second,) = others
            sum_of_squares = first**2 + 0.01 * second**2
            is_zero = sum_of_squares == 0
            error = error * first / anp.sqrt(anp.where(is_zero, 1.0, sum_of_squares))
            error = anp.where(is_zero, 0.0, error)
        return Step(end, stages[-1], error, stages)

    def _staged(
        self,
        f: Function,
        t: Array,
        h: Array,
        y: Array,
        stages: Array,
        first: int,
        rows: Sequence[Row],
        nodes: Row,
    ) -> tuple[Array, Array]:
        """Compute stages from number ``first`` on, and return all and the last place.

        ``stages`` (s, n) has room for all, and those before ``first`` are known. A
        stage is the slope at time ``t`` plus ``h`` times its node, and at the place
        ``y`` plus ``h`` times the earlier stages weighted by its row.
        """

        def stage(stages: Array, tableau: tuple[Array, Array, Array]) -> Any:
            """Evaluate one stage, with its number, row and node of the tableau."""
            number, row, node = tableau
            place = y + of_dtype(h, y) * weighted(row, stages)
            slope = f(t + anp.astype(node, t.dtype) * h, place)
            return anp.at(stages)[number].set(slope), place

        width = leaf_type(stages).shape[0]
        numbers = np.arange(first, first + len(rows))
        numbers_rows_nodes = (numbers, padded(rows, width), np.array(nodes))
        stages, places = lax.scan(stage, stages, numbers_rows_nodes)
        return stages, places[-1]

    @property
    def coefficients(self) -> int:
        """The number of vectors of the interpolant."""
        return len(self.powers[0]) if self.powers else 3 + len(self.products)

    def dense(
        self, f: Function, t: Array, h: Array, y: Array, end: Array, stages: Array
    ) -> Array:
        """Return the coefficients of the interpolant; see ``Method.dense``.

        DOP853 first computes its extra stages.
        """
        size = of_dtype(h, y)
        if self.powers:
            return size * weighted(np.array(self.powers).T, stages)
        nodes, rows = zip(*self.extra, strict=True)
        more = anp.zeros((len(rows), *y.shape), y.dtype)
        all_stages = anp.concatenate([stages, more])
        all_stages, _ = self._staged(f, t, h, y, all_stages, self.stages, rows, nodes)
        change = end - y
        # The cubic that has the values and slopes of both ends.
        parts = [
            change,
            size * stages[0] - change,
            2 * change - size * (stages[-1] + stages[0]),
        ]
        products = size * weighted(np.array(self.products), all_stages)
        return anp.concatenate([anp.stack(parts), products])

    def evaluate(self, coefficients: Array, y: Array, at: Array) -> Array:
        """Return y at the fraction ``at`` of a step, by a scheme like Horner's.

        DOP853's polynomial alternates the factors at and 1 - at.
        """
        at = of_dtype(at, y)
        result = anp.zeros_like(y)
        for k, number in enumerate(reversed(range(self.coefficients))):
            is_power = bool(self.powers) or k % 2 == 0
            result = (result + coefficients[number]) * (at if is_power else 1 - at)
        return y + result


BOGACKI_SHAMPINE: Final = RungeKutta(
    order=2,
    nodes=(0, 1 / 2, 3 / 4),
    matrix=((), (1 / 2,), (0, 3 / 4)),
    weights=(2 / 9, 1 / 3, 4 / 9),
    errors=((5 / 72, -1 / 12, -1 / 9, 1 / 8),),
    powers=((1, -4 / 3, 5 / 9), (0, 1, -2 / 3), (0, 4 / 3, -8 / 9), (0, -1, 1)),
)

DORMAND_PRINCE: Final = RungeKutta(
    order=4,
    nodes=(0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1),
    matrix=(
        (),
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    ),
    weights=(35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    errors=(
        (-71 / 57600, 0, 71 / 16695, -71 / 1920, 17253 / 339200, -22 / 525, 1 / 40),
    ),
    powers=(
        (
            1,
            -8048581381 / 2820520608,
            8663915743 / 2820520608,
            -12715105075 / 11282082432,
        ),
        (0, 0, 0, 0),
        (
            0,
            131558114200 / 32700410799,
            -68118460800 / 10900136933,
            87487479700 / 32700410799,
        ),
        (
            0,
            -1754552775 / 470086768,
            14199869525 / 1410260304,
            -10690763975 / 1880347072,
        ),
        (
            0,
            127303824393 / 49829197408,
            -318862633887 / 49829197408,
            701980252875 / 199316789632,
        ),
        (0, -282668133 / 205662961, 2019193451 / 616988883, -1453857185 / 822651844),
        (0, 40617522 / 29380423, -110615467 / 29380423, 69997945 / 29380423),
    ),
)


@cache
def dormand_prince_853() -> RungeKutta:
    """Return DOP853, with SciPy's coefficients, which are converted once."""
    from scipy.integrate import DOP853

    def rows(matrix: Any) -> tuple[Row, ...]:
        """Convert a matrix to tuples of Python numbers."""
        return tuple(tuple(map(float, row)) for row in np.asarray(matrix))

    nodes = zip(DOP853.C_EXTRA, rows(DOP853.A_EXTRA), strict=True)
    return RungeKutta(
        order=7,
        nodes=tuple(map(float, DOP853.C)),
        matrix=rows(DOP853.A),
        weights=rows([DOP853.B])[0],
        errors=rows([DOP853.E5, DOP853.E3]),
        extra=tuple((float(node), row) for node, row in nodes),
        products=rows(DOP853.D),
    )
