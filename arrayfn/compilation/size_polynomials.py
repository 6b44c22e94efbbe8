"""Polynomials of open sizes: through given points, as text, and their values.

Coefficients are fractions, whose module takes 5 to 10 ms to import (2-core EPYC). So
only programs with open sizes import this one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Final

from arrayfn.errors import BundleError

Sizes = Mapping[str, int]
DEGREE: Final = 3  # the highest of a polynomial
_TERM: Final = re.compile(
    r"([+-]?)(\d{1,30})(?:/(\d{1,30}))?((?:\*[A-Za-z_]\w*)*)", re.ASCII
)
Polynomial = dict[tuple[str, ...], Fraction]
"""The coefficients of products of names, which are sorted."""


class Fit:
    """Finds polynomials in the sizes ``names`` through given values at ``points``.

    At n = 2, 3 and 4 the words "5", "7" and "9" are ``$(2*n+1)``.

    Attributes:
        points: the sizes at which values are given.
        cached: the answers of ``formula_of``.
        monomials: those of degree 1 at most, of 2 at most and so on, each the names of
            its factors.
    """

    def __init__(self, points: Sequence[Sizes], names: Sequence[str]) -> None:
        self.points = points
        self.cached: dict[tuple[str, ...], str | None] = {}
        # For each degree, the products of sizes up to that degree, as tuples of names.
        self.monomials = [
            [
                monomial
                for degree in range(most + 1)
                for monomial in combinations_with_replacement(names, degree)
            ]
            for most in range(1, DEGREE + 1)
        ]

    def formula_of(self, words: list[str]) -> str | None:
        """Return the text ``$(...)`` for a number that reads ``words[k]`` at point k.

        For "5", "7" and "9" at n = 2, 3 and 4 it is ``$(2*n+1)``; for "0.5", "0.25" and
        "0.125" at n = 2, 4 and 8 it is ``$(reciprocal:n)``.
        None if no polynomial of the sizes has these values, or their reciprocals. A
        Program has many equal numbers, so answers are kept.
        """
        key = tuple(words)
        if key not in self.cached:
            self.cached[key] = self._formula_of(words)
        return self.cached[key]

    def _formula_of(self, words: list[str]) -> str | None:
        """Do what ``formula_of`` does, without the cache.

        Tries integers, then floats, then reciprocals of integers.
        """
        if all(re.fullmatch(r"[+-]?\d+", word) for word in words):
            polynomial = self.interpolated([Fraction(word) for word in words])
            return None if polynomial is None else f"$({printed(polynomial)})"
        values = [float(word) for word in words]
        if not all(map(math.isfinite, values)):
            return None
        polynomial = self.interpolated([Fraction(x) for x in values])
        if polynomial is not None:
            return f"$(float:{printed(polynomial)})"
        if not all(values):
            return None
        whole = [Fraction(round(1 / x)) for x in values]
        if any(n == 0 or float(1 / n) != x for n, x in zip(whole, values, strict=True)):
            return None
        polynomial = self.interpolated(whole)
        return None if polynomial is None else f"$(reciprocal:{printed(polynomial)})"

    def interpolated(self, values: Sequence[Fraction]) -> Polynomial | None:
        """Return the polynomial of the smallest degree with these values.

        None if none has.
        """
        for monomials in self.monomials:
            rows = [
                [Fraction(math.prod(point[name] for name in m)) for m in monomials]
                for point in self.points
            ]
            coefficients = _solution(rows, values)
            if coefficients is not None:
                return {m: c for m, c in zip(monomials, coefficients, strict=True) if c}
        return None


def _solution(
    rows: Sequence[Sequence[Fraction]], values: Sequence[Fraction]
) -> list[Fraction] | None:
    """Solve rows @ x = values by Gaussian elimination; None if there is no solution.

    Unknowns that the equations leave open are 0.
    """
    count = len(rows[0])
    table = [[*row, value] for row, value in zip(rows, values, strict=True)]
    pivots: list[int] = []
    for column in range(count):
        # Row ``at`` gets the pivot of this column, if a row has one; the column is then
        # eliminated from all other rows.
        at = len(pivots)
        chosen = next((k for k in range(at, len(table)) if table[k][column]), None)
        if chosen is None:
            continue
        table[at], table[chosen] = table[chosen], table[at]
        head = table[at][column]
        table[at] = [x / head for x in table[at]]
        for k, row in enumerate(table):
            if k != at and row[column]:
                factor = row[column]
                table[k] = [x - factor * y for x, y in zip(row, table[at], strict=True)]
        pivots.append(column)
    if any(row[-1] for row in table[len(pivots) :]):
        return None  # 0 = value: a contradiction
    solution = [Fraction(0)] * count
    for row, column in zip(table, pivots, strict=False):
        solution[column] = row[-1]
    return solution


def printed(polynomial: Polynomial) -> str:
    """Return ``polynomial`` as text, which ``parsed`` reads.

    >>> printed({("m", "n"): Fraction(3, 2), (): Fraction(-1)})
    '3/2*m*n-1'
    >>> printed(parsed("n*n-m+2/3"))
    'n*n-m+2/3'
    """
    text = ""
    for names, coefficient in polynomial.items():
        sign = "-" if coefficient < 0 else "+"
        text += sign + "*".join((str(abs(coefficient)), *names))
    # Leave out "1*", where 1 is not a part of a longer number.
    return re.sub(r"(?<!\w)1\*", "", text).removeprefix("+") or "0"


def parsed(text: str) -> Polynomial:
    """Parse the text of a polynomial; BundleError if it is invalid."""
    polynomial: Polynomial = {}
    # Write "n" as "1*n", so that every term begins with a number.
    text = re.sub(r"(^|[+-])(?=[A-Za-z_])", r"\g<1>1*", text)
    place = 0
    while place < len(text):
        # Its groups: the sign, the numerator, the denominator, and "*m*n" for m and n.
        match = _TERM.match(text, place)
        if match is None or (place and not match[1]) or match[3] == "0":
            raise BundleError(f"has no polynomial {text!r}")
        names = tuple(match[4].split("*")[1:])
        coefficient = Fraction(int(match[2]), int(match[3] or 1) or 1)
        polynomial[names] = -coefficient if match[1] == "-" else coefficient
        place = match.end()
    return polynomial


def evaluated(polynomial: Polynomial, sizes: Sizes) -> Fraction:
    """Return the value of ``polynomial`` at ``sizes``.

    Raises BundleError for a name that is not among them, and for terms of too high a
    degree.
    """
    total = Fraction(0)
    for names, coefficient in polynomial.items():
        if not sizes.keys() >= set(names) or len(names) > DEGREE:
            raise BundleError(f"has a polynomial of {', '.join(names)}")
        total += coefficient * math.prod(sizes[name] for name in names)
    return total
