"""Linear algebra, Fourier transforms, random numbers, searches and sets."""

from __future__ import annotations

from tests.fuzz.forms import form
from tests.fuzz.generator import Draw, step


def square(d: Draw) -> tuple[str, int]:
    """A well-conditioned matrix, and finite: LAPACK promises nothing else."""
    dtype = d.choice(["float32", "float64", "float64", "complex64"])
    n = d.integer(0, 5)
    x = d.of((n, n), dtype)
    return (
        f"(anp.tanh(anp.nan_to_num({x})) + {n + 1} * anp.eye({n}, dtype={dtype!r}))",
        n,
    )


@step("linalg", 3)
def of_a_matrix(d: Draw) -> str:
    a, _ = square(d)
    name = d.choice(
        ["inv", "det", "slogdet", "norm", "pinv", "svdvals", "matrix_power"]
    )
    more = f", {d.integer(-1, 3)}" if name == "matrix_power" else ""
    return f"anp.linalg.{name}({a}{more})"


@step("linalg", 2)
def solve(d: Draw) -> str:
    a, n = square(d)
    b = d.of((n, d.integer(0, 3)), "float64")
    return f"anp.linalg.solve({a}, {b})"


@step("linalg", 2)
def symmetric(d: Draw) -> str:
    dtype = d.choice(["float32", "float64"])
    n = d.integer(0, 5)
    x = f"anp.tanh(anp.nan_to_num({d.of((n, n), dtype)}))"
    a = f"({x} @ {x}.T + anp.eye({n}, dtype={dtype!r}))"
    name = d.choice(["cholesky", "eigvalsh", "inv", "det"])
    return f"anp.linalg.{name}({a})"


@step("linalg", 1)
def triangular(d: Draw) -> str:
    a, _ = square(d)
    return (
        f"lax.linalg.triangular_solve({a}, {a}, left_side=True, lower={d.chance(0.5)})"
    )


form("fft", 2, "fc", 1, "anp.fft.{fft|ifft|rfft|irfft|fft2|hfft}({x})")
form("fft", 1, "bifc", 1, "anp.fft.{fftshift|ifftshift}({x})")


@step("random", 3)
def drawn(d: Draw) -> str:
    shape = d.shape(0, 2)
    name = d.choice(["uniform", "normal", "bits", "exponential", "gumbel", "laplace"])
    return f"random.{name}(random.key({d.integer(0, 9)}), {shape})"


@step("random", 1)
def drawn_integers(d: Draw) -> str:
    key = f"random.key({d.integer(0, 9)})"
    shape = d.shape(0, 2)
    return d.choice(
        [
            f"random.randint({key}, {shape}, 0, 9)",
            f"random.bernoulli({key}, 0.5, {shape})",
            f"random.permutation({key}, {d.pick('if', 1)})",
            f"random.key_data(random.fold_in({key}, 3))",
        ]
    )


form(
    *("search", 2, "f", 1),
    "anp.searchsorted(anp.array([-1.0, 0.0, 0.5, 2.0]), {x})",
    "anp.digitize({x}, anp.array([-1.0, 0.0, 1.0]))",
    "anp.interp({x}, anp.array([-1.0, 0.0, 2.0]), anp.array([1.0, 3, -1]))",
    "anp.searchsorted(anp.sort(anp.ravel({x})), 0.5)",
)
form(
    *("search", 2, "i", 0),
    "anp.unique({x}, size=4)",
    "anp.isin({x}, anp.array([0, 2]))",
    "anp.unravel_index({x} % 6, (2, 3))",
    "anp.vander(anp.ravel({x}), 3)",
)
form(
    *("search", 1, "f", 1),
    "anp.polymul({x}, {x})",
    "anp.{polyder|unwrap|ediff1d}({x})",
    "anp.cross(anp.resize({x}, (3,)), anp.array([1.0, 2.0, 3.0]))",
    high=1,
)
