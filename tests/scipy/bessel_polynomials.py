"""The polynomials of ``arrayfn.scipy.special.bessel_tables``, from their definitions.

Each interpolates a smooth part of a Bessel function at Chebyshev's nodes, with mpmath.
This prints the tables:

    python -m tests.scipy.bessel_polynomials
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import mpmath as mp

# 2 exp(-Euler's constant): K0(x) + log(x / C) I0(x) vanishes at 0.
C = 2 * mp.exp(-mp.euler)


def zeros() -> dict[str, list[Any]]:
    """The positive zeros of J0, J1, Y0 and Y1 up to 8."""
    with mp.workdps(45):
        return {
            "J0_ZEROS": [mp.besseljzero(0, k) for k in (1, 2)],
            "J1_ZEROS": [mp.besseljzero(1, k) for k in (1, 2)],
            "Y0_ZEROS": [mp.besselyzero(0, k) for k in (1, 2, 3)],
            "Y1_ZEROS": [mp.besselyzero(1, k) for k in (1, 2)],
        }


def interpolated(function: Callable[[Any], Any], degree: int) -> list[float]:
    """Coefficients, the constant first, of the interpolant on [-1, 1]."""
    n = degree + 1
    angles = [mp.pi * (k + mp.mpf(1) / 2) / n for k in range(n)]
    values = [function(mp.cos(angle)) for angle in angles]
    total = [mp.mpf(0)] * n
    before, here = [mp.mpf(0)] * n, [mp.mpf(1)] + [mp.mpf(0)] * degree
    for j in range(n):
        share = mp.fdot(values, [mp.cos(j * angle) for angle in angles])
        share *= mp.mpf(2 if j else 1) / n
        total = [a + share * b for a, b in zip(total, here, strict=True)]
        # T(j + 1) = 2 t T(j) - T(j - 1)
        turned = [mp.mpf(0), *((2 if j else 1) * a for a in here[:-1])]
        before, here = here, [a - b for a, b in zip(turned, before, strict=True)]
    return [float(a) for a in total]


def definitions() -> dict[str, tuple[Callable[[Any], Any], int]]:
    """The functions of t in [-1, 1], and the degrees."""
    places = zeros()
    (j0, j0_2), (j1, j1_2) = places["J0_ZEROS"], places["J1_ZEROS"]
    (y0, y0_2, y0_3), (y1, y1_2) = places["Y0_ZEROS"], places["Y1_ZEROS"]

    def squared(top: int, of_x: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda t: of_x(top * mp.sqrt((t + 1) / 2))

    def near_y0(x: Any) -> Any:
        log = 2 / mp.pi * mp.log(x / y0)
        return (mp.bessely(0, x) - log * mp.besselj(0, x)) / (x * x - y0**2)

    def near_y1(x: Any) -> Any:
        log = 2 / mp.pi * mp.log(x / y1)
        rest = x * (mp.bessely(1, x) - log * mp.besselj(1, x))
        return rest / (x * x - y1**2)

    def near_k1(x: Any) -> Any:
        rest = x * mp.besselk(1, x) - 1 - x * mp.besseli(1, x) * mp.log(x)
        return rest / x**2

    def wave(order: int, part: str) -> Callable[[Any], Any]:
        def value(t: Any) -> Any:
            x = mp.sqrt(128 / (t + 1))
            angle = x - mp.pi / 4 * (2 * order + 1)
            j, y = mp.besselj(order, x), mp.bessely(order, x)
            if part == "P":
                turned = j * mp.cos(angle) + y * mp.sin(angle)
            else:
                turned = (y * mp.cos(angle) - j * mp.sin(angle)) * x / 8
            return mp.sqrt(mp.pi * x / 2) * turned

        return value

    def far_k(order: int) -> Callable[[Any], Any]:
        def value(t: Any) -> Any:
            x = 2 / (t + 1)
            return mp.sqrt(x) * mp.exp(x) * mp.besselk(order, x)

        return value

    return {
        "J0_NEAR": (squared(4, lambda x: mp.besselj(0, x) / (x * x - j0**2)), 11),
        "J0_MIDDLE": (lambda t: mp.besselj(0, 6 + 2 * t) / (6 + 2 * t - j0_2), 18),
        "J1_NEAR": (squared(4, lambda x: mp.besselj(1, x) / x / (x * x - j1**2)), 11),
        "J1_MIDDLE": (
            lambda t: mp.besselj(1, 6 + 2 * t) / (6 + 2 * t - j1) / (6 + 2 * t - j1_2),
            18,
        ),
        "Y0_NEAR": (squared(3, near_y0), 10),
        "Y0_MIDDLE": (
            lambda t: (
                mp.bessely(0, 5.5 + 2.5 * t)
                / (5.5 + 2.5 * t - y0_2)
                / (5.5 + 2.5 * t - y0_3)
            ),
            26,
        ),
        "Y1_NEAR": (squared(4, near_y1), 12),
        "Y1_MIDDLE": (lambda t: mp.bessely(1, 6 + 2 * t) / (6 + 2 * t - y1_2), 22),
        **{f"{part}{n}": (wave(n, part), 12) for n in (0, 1) for part in "PQ"},
        "K0_NEAR": (
            squared(1, lambda x: mp.besselk(0, x) + mp.log(x / C) * mp.besseli(0, x)),
            7,
        ),
        "K1_NEAR": (squared(1, near_k1), 7),
        "K0_FAR": (far_k(0), 34),
        "K1_FAR": (far_k(1), 34),
    }


def tables() -> dict[str, tuple[Any, ...]]:
    """The coefficients by the name of the table; a zero is a float and a correction."""
    with mp.workdps(45):
        found: dict[str, tuple[Any, ...]] = {
            name: tuple((float(z), float(z - float(z))) for z in values)
            for name, values in zeros().items()
        }
        for name, (function, degree) in definitions().items():
            found[name] = tuple(interpolated(function, degree))
    return found


if __name__ == "__main__":
    for name, numbers in tables().items():
        sys.stdout.write(f"{name} = {numbers}\n")
