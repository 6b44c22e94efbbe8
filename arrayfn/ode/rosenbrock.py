"""Rodas5P, a method for stiff equations: eight linear systems with one matrix a step.

The Jacobian is that of automatic differentiation. The method is L-stable and of order
5, its interpolant of order 4. Source: Steinebach, Construction of Rosenbrock-Wanner
method Rodas5P and numerical benchmarks within the Julia Differential Equations package
(BIT, 2023); the form of the stages is Hairer and Wanner's, Solving Ordinary
Differential Equations II (1996), section IV.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

import arrayfn.numpy as anp
from arrayfn import dtypes, lax
from arrayfn.errors import DTypeError, user_location
from arrayfn.numpy._operands import Array
from arrayfn.ode.methods import (
    Function,
    Row,
    Scale,
    Step,
    norm,
    of_dtype,
    padded,
    weighted,
)
from arrayfn.records import frozen
from arrayfn.sparse import CSR, jacobian
from arrayfn.sparse.solves import spsolve
from arrayfn.transforms import jacfwd, jvp


@frozen(eq=False)
class Rosenbrock:
    """A Rosenbrock method, where J and f_t are the derivatives of f by y and by t.

    Stage k solves (1 / (gamma h) - J) k = f(t + node h, y + a k) + (c / h) k + d h f_t,
    where a k and c k are weighted sums of the stages before. The last two stages are
    evaluated at the end of the step, and the last one is the error. ``products`` has
    the weights of stages in the interpolant.
    """

    order: int
    gamma: float
    nodes: Row
    matrix: tuple[Row, ...]  # a
    coupling: tuple[Row, ...]  # c
    shares: Row  # d
    products: tuple[Row, ...]
    sparsity: CSR | None = None
    """Where the Jacobian may be other than 0, with the diagonal."""

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.nodes)

    @property
    def evaluations(self) -> int:
        """The number of calls of f in a step, except those for the Jacobian."""
        return len(self.nodes)

    def step(
        self, f: Function, t: Array, y: Array, fy: Array, h: Array, scale: Scale
    ) -> Step:
        """Do a step: solve one linear system for each stage, all with one matrix.

        See ``Method.step`` for the parameters. The step does not need ``fy``, and
        returns it unchanged. Complex y raises DTypeError.
        """
        if y.dtype in dtypes.COMPLEX:
            raise DTypeError(
                f"the method Rodas5P takes real y, not {y.dtype}; solve for real and "
                "imaginary parts",
                user_location(),
            )
        length = of_dtype(h, y)
        _, by_t = jvp(lambda t: f(t, y), (t,), (anp.ones_like(t),))
        solve = self._solver(lambda y: f(t, y), y, 1 / (length * self.gamma))

        def stage(stages: Array, coefficients: tuple[Array, ...]) -> Any:
            """Solve for one stage, with its number and row of the tableau.

            ``length`` is h, ``by_t`` is the derivative of f by t, and ``solve`` solves
            with the matrix 1 / (gamma h) - J.
            """
            number, node, share, row, coupling = coefficients
            place = y + weighted(row, stages)
            slope = f(t + anp.astype(node, t.dtype) * h, place)
            slope = slope + weighted(coupling, stages) / length
            slope = slope + of_dtype(share, y) * length * by_t
            return anp.at(stages)[number].set(solve(slope)), place

        count = self.stages
        each = (
            np.arange(count),
            np.array(self.nodes),
            np.array(self.shares),
            padded(self.matrix, count),
            padded(self.coupling, count),
        )
        stages = anp.zeros((count, *y.shape), y.dtype)
        stages, places = lax.scan(stage, stages, each)
        # The method is stiffly accurate: y at the end is the place of the last stage
        # plus that stage, which is also the error of the embedded method.
        error = stages[-1]
        end = places[-1] + error
        return Step(end, fy, norm(error / scale(y, end)), stages)

    def _solver(
        self, f: Callable[[Array], Array], y: Array, shift: Array
    ) -> Callable[[Array], Array]:
        """Return a function that solves systems with the matrix ``shift`` I - J.

        J is the Jacobian of f at ``y``. With ``sparsity``, it is sparse, and so is the
        solver.
        """
        if self.sparsity is None:
            dense = shift * anp.eye(y.shape[0], dtype=y.dtype) - jacfwd(f)(y)
            return lambda right: anp.linalg.solve(dense, right)
        slopes = jacobian(f, self.sparsity)(y)
        rows, columns = slopes.coordinates()
        # The pattern contains the diagonal.
        matrix = slopes.with_data(shift * (rows == columns) - slopes.data)
        return lambda right: spsolve(matrix, right)

    @property
    def coefficients(self) -> int:
        """The number of vectors of the interpolant."""
        return 1 + len(self.products)

    def dense(
        self, f: Function, t: Array, h: Array, y: Array, end: Array, stages: Array
    ) -> Array:
        """Return the interpolant's coefficients: the end, and weighted stages.

        See ``Method.dense`` for the parameters.
        """
        return anp.concatenate([end[None], weighted(np.array(self.products), stages)])

    def evaluate(self, coefficients: Array, y: Array, at: Array) -> Array:
        """Return y at the fraction s = ``at`` of a step.

        It is (1 - s) y + s (end + (1 - s) (c1 + s (c2 + s c3))), for the coefficients
        c.
        """
        at = of_dtype(at, y)
        end, *rest = (coefficients[k] for k in range(self.coefficients))
        total = anp.zeros_like(y)
        for vector in reversed(rest):
            total = at * total + vector
        return (1 - at) * y + at * (end + (1 - at) * total)


RODAS5P: Final = Rosenbrock(
    order=4,
    gamma=0.21193756319429014,
    nodes=(
        0.0,
        0.6358126895828704,
        0.4095798393397535,
        0.9769306725060716,
        0.4288403609558664,
        1.0,
        1.0,
        1.0,
    ),
    matrix=(
        (),
        (3.0,),
        (2.849394379747939, 0.45842242204463923),
        (-6.954028509809101, 2.489845061869568, -10.358996098473584),
        (
            2.8029986275628964,
            0.5072464736228206,
            -0.3988312541770524,
            -0.04721187230404641,
        ),
        (
            -7.502846399306121,
            2.561846144803919,
            -11.627539656261098,
            -0.18268767659942256,
            0.030198172008377946,
        ),
        (
            -7.502846399306121,
            2.561846144803919,
            -11.627539656261098,
            -0.18268767659942256,
            0.030198172008377946,
            1.0,
        ),
        (
            -7.502846399306121,
            2.561846144803919,
            -11.627539656261098,
            -0.18268767659942256,
            0.030198172008377946,
            1.0,
            1.0,
        ),
    ),
    coupling=(
        (),
        (-14.155112264123755,),
        (-17.97296035885952, -2.859693295451294),
        (147.12150275711716, -1.41221402718213, 71.68940251302358),
        (
            165.43517024871676,
            -0.4592823456491126,
            42.90938336958603,
            -5.961986721573306,
        ),
        (
            24.854864614690072,
            -3.0009227002832186,
            47.4931110020768,
            5.5814197821558125,
            -0.6610691825249471,
        ),
        (
            30.91273214028599,
            -3.1208243349937974,
            77.79954646070892,
            34.28646028294783,
            -19.097331116725623,
            -28.087943162872662,
        ),
        (
            37.80277123390563,
            -3.2571969029072276,
            112.26918849496327,
            66.9347231244047,
            -40.06618937091002,
            -54.66780262877968,
            -9.48861652309627,
        ),
    ),
    shares=(
        0.21193756319429014,
        -0.42387512638858027,
        -0.3384627126235924,
        1.8046452872882734,
        2.325825639765069,
        0.0,
        0.0,
        0.0,
    ),
    products=(
        (
            25.948786856663858,
            -2.5579724845846235,
            10.433815404888879,
            -2.3679251022685204,
            0.524948541321073,
            1.1241088310450404,
            0.4272876194431874,
            -0.17202221070155493,
        ),
        (
            -9.91568850695171,
            -0.9689944594115154,
            3.0438037242978453,
            -24.495224566215796,
            20.176138334709044,
            15.98066361424651,
            -6.789040303419874,
            -6.710236069923372,
        ),
        (
            11.419903575922262,
            2.8879645146136994,
            72.92137995996029,
            80.12511834622643,
            -52.072871366152654,
            -59.78993625266729,
            -0.15582684282751913,
            4.883087185713722,
        ),
    ),
)
