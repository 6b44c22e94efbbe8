"""Rotations of vectors in space, as unit quaternions.

Sources: Shuster, A Survey of Attitude Representations (1993); Bernardes and Viollet,
Quaternion to Euler angles conversion (2022).
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

import arrayfn.numpy as anp
from arrayfn import documentation as _documentation
from arrayfn import dtypes
from arrayfn.errors import ArgumentError, ShapeError, user_location
from arrayfn.numpy import _operands as ops
from arrayfn.numpy._operands import Array, ArrayLike

# Below this squared angle, sine over angle is computed by its series.
_SMALL = 1e-6
# The distance from an end at which an Euler angle counts as degenerate.
_NEAR = 1e-7


def _floats_of_length(x: ArrayLike, length: int, name: str) -> Array:
    """Convert x to floating point, and check the length of its last axis.

    A length other than ``length`` raises ShapeError, about the function ``name``.
    """
    value = anp.asarray(x)
    if not value.ndim or value.shape[-1] != length:
        raise ShapeError(
            f"{name} takes {length} numbers along the last axis, not {value.shape}",
            user_location(),
        )
    return ops.convert(value, ops.inexact_dtype(name, value.dtype))


def _norm(x: Array) -> Array:
    """Return the Euclidean norms along the last axis, which is kept with extent 1."""
    return anp.sqrt(anp.sum(x * x, -1, keepdims=True))


def _product(p: Array, q: Array) -> Array:
    """Multiply quaternions p and q (..., 4), with the scalar last.

    As a rotation, the product applies q first. Its vector part is a v + b u + u x v,
    and its scalar is a b - u . v.
    """
    p, q = anp.broadcast_arrays(p, q)
    u, v, a, b = p[..., :3], q[..., :3], p[..., 3:], q[..., 3:]
    vector = a * v + b * u + anp.cross(u, v)
    scalar = a * b - anp.sum(u * v, -1, keepdims=True)
    return anp.concatenate([vector, scalar], -1)


class Rotation(NamedTuple):
    """A rotation or an array of rotations.

    It holds unit quaternions (..., 4), the scalar last. It is a pytree, so functions
    can take and return it.

    >>> import numpy as np
    >>> quarter = Rotation.from_euler("z", 90.0, degrees=True)
    >>> np.round(quarter.apply(np.array([1.0, 0.0, 0.0])), 6) + 0.0
    array([0., 1., 0.])
    """

    quat: Array

    @classmethod
    def from_quat(cls, quat: ArrayLike, *, scalar_first: bool = False) -> Rotation:
        """Return the rotation of nonzero quaternions (..., 4), with the scalar last.

        With ``scalar_first`` the scalar is first. The quaternions are normalised.
        """
        value = _floats_of_length(quat, 4, "Rotation.from_quat")
        if scalar_first:
            value = anp.roll(value, -1, axis=-1)
        return cls(value / _norm(value))

    @classmethod
    def from_matrix(cls, matrix: ArrayLike) -> Rotation:
        """Return the rotation of orthogonal matrices (..., 3, 3) with determinant 1.

        The method is Shepperd's (1978).
        """
        m = _floats_of_length(matrix, 3, "Rotation.from_matrix")
        if m.ndim < 2 or m.shape[-2] != 3:
            raise ShapeError(
                f"Rotation.from_matrix takes matrices (..., 3, 3), not {m.shape}",
                user_location(),
            )
        # Each candidate is the quaternion times four times one of its elements.
        # That is: candidate i is 4 q[i] (x, y, z, w), for q = x, y, z, w.
        diagonal = [m[..., k, k] for k in range(3)]
        trace = diagonal[0] + diagonal[1] + diagonal[2]
        sums = [[m[..., i, j] + m[..., j, i] for j in range(3)] for i in range(3)]
        differences = [
            m[..., 2, 1] - m[..., 1, 2],
            m[..., 0, 2] - m[..., 2, 0],
            m[..., 1, 0] - m[..., 0, 1],
        ]
        candidates = [
            anp.stack(
                [
                    1.0 - trace + 2.0 * diagonal[j] if i == j else sums[i][j]
                    for j in range(3)
                ]
                + [differences[i]],
                -1,
            )
            for i in range(3)
        ]
        candidates.append(anp.stack([*differences, 1.0 + trace], -1))
        # The candidate with the largest element is the most accurate.
        sizes = anp.stack([*diagonal, trace], -1)
        best = anp.argmax(sizes, -1)[..., None]
        value = candidates[3]
        for k in range(3):
            value = anp.where(best == k, candidates[k], value)
        return cls(value / _norm(value))

    @classmethod
    def from_rotvec(cls, rotvec: ArrayLike, degrees: bool = False) -> Rotation:
        """Return the rotation about vectors (..., 3) by angles equal to their lengths.

        The lengths are in radians. With ``degrees`` they are in degrees. Near 0, series
        replace sin(angle / 2) / angle and cos(angle / 2), so that derivatives are
        finite.
        """
        v = _floats_of_length(rotvec, 3, "Rotation.from_rotvec")
        v = anp.deg2rad(v) if degrees else v
        square = anp.sum(v * v, -1, keepdims=True)
        small = square < _SMALL
        angle = anp.sqrt(anp.where(small, 1.0, square))
        # sin(angle / 2) / angle, by its series near 0
        series = 0.5 - square / 48.0 + square * square / 3840.0
        scale = anp.where(small, series, anp.sin(0.5 * angle) / angle)
        near = 1.0 - square / 8.0 + square * square / 384.0
        return cls(
            anp.concatenate(
                [scale * v, anp.where(small, near, anp.cos(0.5 * angle))], -1
            )
        )

    @classmethod
    def from_mrp(cls, mrp: ArrayLike) -> Rotation:
        """Return the rotation of modified Rodrigues parameters (..., 3).

        These are the unit axis times tan(angle / 4).
        """
        v = _floats_of_length(mrp, 3, "Rotation.from_mrp")
        # For t = tan(angle / 4), the sine of angle / 2 is 2 t / (1 + t**2), and the
        # cosine is (1 - t**2) / (1 + t**2). The quaternion is (axis * sine, cosine).
        square = anp.sum(v * v, -1, keepdims=True)
        return cls(anp.concatenate([2.0 * v, 1.0 - square], -1) / (1.0 + square))

    @classmethod
    def from_euler(cls, seq: str, angles: ArrayLike, degrees: bool = False) -> Rotation:
        """Return the rotation that is composed of rotations about up to three axes.

        ``seq`` names the axes in order: "xyz" for fixed axes, "XYZ" for axes that each
        rotation turns (intrinsic). ``angles`` are (..., axes), or (...,) for one axis.
        They are in radians. With ``degrees`` they are in degrees.
        """
        axes, intrinsic = _axes_of(seq)
        value = anp.asarray(angles)
        value = ops.convert(value, ops.inexact_dtype("from_euler", value.dtype))
        value = anp.deg2rad(value) if degrees else value
        lacks_axis = len(axes) == 1 and not (value.ndim and value.shape[-1] == 1)
        value = value[..., None] if lacks_axis else value
        if not value.ndim or value.shape[-1] != len(axes):
            raise ShapeError(
                f"Rotation.from_euler: {seq!r} takes {len(axes)} angles along the last "
                f"axis, not {value.shape}",
                user_location(),
            )
        parts: list[Array] = []
        for number, axis in enumerate(axes):
            half = 0.5 * value[..., number]
            sine, zero = anp.sin(half), anp.zeros_like(half)
            vector = [sine if k == axis else zero for k in range(3)]
            parts.append(anp.stack([*vector, anp.cos(half)], -1))
        # The product applies its right factor first.
        ordered = parts if intrinsic else parts[::-1]
        return cls(functools.reduce(_product, ordered))

    @classmethod
    def identity(cls, num: int | None = None, dtype: Any = np.float64) -> Rotation:
        """Return the identity, or with ``num`` an array of identities, of ``dtype``."""
        one = np.array([0.0, 0.0, 0.0, 1.0], dtypes.canonical(dtype))
        return cls(one if num is None else np.tile(one, (num, 1)))

    @classmethod
    def concatenate(cls, rotations: Any) -> Rotation:
        """Join a sequence of rotations into one array of rotations."""
        return cls(anp.concatenate([anp.atleast_2d(r.quat) for r in rotations]))

    @property
    def single(self) -> bool:
        """Whether this is a single rotation, not an array."""
        return self.quat.ndim == 1

    def as_quat(self, canonical: bool = False, *, scalar_first: bool = False) -> Array:
        """Return quaternions (..., 4), with the scalar last.

        With ``scalar_first`` the scalar is first. With ``canonical`` it is not
        negative: q and -q are the same rotation.
        """
        value = ops.same(self.quat)
        if canonical:
            value = anp.where(value[..., 3:] < 0, -value, value)
        return anp.roll(value, 1, axis=-1) if scalar_first else value

    def as_matrix(self) -> Array:
        """Return rotation matrices (..., 3, 3).

        They are the standard formula for a unit quaternion (x, y, z, w).
        """
        x, y, z, w = (self.quat[..., k] for k in range(4))
        rows = [
            [x * x - y * y - z * z + w * w, 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), -x * x + y * y - z * z + w * w, 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), -x * x - y * y + z * z + w * w],
        ]
        return anp.stack([anp.stack(row, -1) for row in rows], -2)

    def as_rotvec(self, degrees: bool = False) -> Array:
        """Return the rotation axis times the angle, which is in [0, pi], as (..., 3).

        The angle is in radians. With ``degrees`` it is in degrees. Near 0, a series
        replaces angle / sin(angle / 2).
        """
        q = self.as_quat(canonical=True)
        vector, scalar = q[..., :3], q[..., 3:]
        square = anp.sum(vector * vector, -1, keepdims=True)
        small = square < 0.25 * _SMALL
        sine = anp.sqrt(anp.where(small, 1.0, square))
        angle = 2.0 * anp.arctan2(sine, scalar)
        # angle / sine by the series of the arcsine
        scale = anp.where(
            small, 2.0 + square / 3.0 + 0.15 * square * square, angle / sine
        )
        value = scale * vector
        return anp.rad2deg(value) if degrees else value

    def as_mrp(self) -> Array:
        """Return modified Rodrigues parameters (..., 3).

        These are the unit axis times tan(angle / 4).
        """
        q = self.as_quat(canonical=True)
        return q[..., :3] / (1.0 + q[..., 3:])

    def as_euler(self, seq: str, degrees: bool = False) -> Array:
        """Return angles (..., 3) about the three axes that ``seq`` names.

        ``seq`` is as in ``from_euler``, and another number of axes raises
        ArgumentError. The second angle is in [0, pi] if the first and last axis are
        equal, otherwise in [-pi/2, pi/2]. If the second angle is at an end of its
        interval, the third angle is 0. The method is Bernardes and Viollet's (2022).
        """
        axes, intrinsic = _axes_of(seq)
        if len(axes) != 3:
            raise ArgumentError(
                f"Rotation.as_euler takes three axes, not {seq!r}", user_location()
            )
        # Intrinsic rotations are extrinsic ones about the reversed axes.
        i, j, k = axes if not intrinsic else axes[::-1]
        proper = i == k
        # Proper Euler angles (i, j, i) need the third axis k. The sign is that of the
        # permutation (i, j, k).
        k = 3 - i - j if proper else k
        sign = (i - j) * (j - k) * (k - i) // 2
        q = [self.quat[..., n] for n in range(4)]
        a, b, c, d = q[3], q[i], q[j], q[k] * sign
        # Three different axes are turned into the proper case by a quarter turn.
        if not proper:
            a, b, c, d = a - c, b + d, c + a, d - b
        middle = 2.0 * anp.arctan2(anp.hypot(c, d), anp.hypot(a, b))
        half_sum, half_difference = anp.arctan2(b, a), anp.arctan2(d, c)
        first = half_sum - half_difference
        third = half_sum + half_difference
        # At an end of the second angle the others share an axis; set one to 0.
        at_start = anp.abs(middle) < _NEAR
        at_end = at_start | (anp.abs(middle - np.pi) < _NEAR)
        other = half_difference if intrinsic else -half_difference
        both = 2.0 * anp.where(at_start, half_sum, other)
        first_at_end, third_at_end = (0.0, both) if intrinsic else (both, 0.0)
        first = anp.where(at_end, first_at_end, first)
        third = anp.where(at_end, third_at_end, third)
        if not proper:
            third = third * sign
            middle = middle - 0.5 * np.pi
        ordered = [third, middle, first] if intrinsic else [first, middle, third]
        angles = anp.stack(ordered, -1)
        # To [-pi, pi).
        angles = anp.remainder(angles + np.pi, 2 * np.pi) - np.pi
        return anp.rad2deg(angles) if degrees else angles

    def apply(self, vectors: ArrayLike, inverse: bool = False) -> Array:
        """Rotate vectors (..., 3) by this rotation, or by its inverse.

        Rotations and vectors broadcast.
        """
        matrix = self.as_matrix()
        matrix = anp.matrix_transpose(matrix) if inverse else matrix
        return anp.matvec(matrix, _floats_of_length(vectors, 3, "Rotation.apply"))

    def inv(self) -> Rotation:
        """Return the inverse rotation: the conjugate quaternion."""
        return Rotation(self.quat * np.array([-1, -1, -1, 1], self.quat.dtype))

    def magnitude(self) -> Array:
        """Return the angle of each rotation, in radians in [0, pi]."""
        size = anp.sqrt(anp.sum(self.quat[..., :3] ** 2, -1))
        return 2.0 * anp.arctan2(size, anp.abs(self.quat[..., 3]))

    def mean(self, weights: ArrayLike | None = None) -> Rotation:
        """Return the mean rotation, weighted by ``weights`` (n,) (None: equally).

        Its quaternion is the eigenvector of sum(w q q^T) with the largest eigenvalue
        (Markley et al., Averaging quaternions, 2007).
        """
        q = anp.atleast_2d(self.quat)
        weight = anp.ones(q.shape[0], q.dtype) if weights is None else weights
        _, vectors = anp.linalg.eigh(anp.einsum("i,ij,ik->jk", weight, q, q))
        return Rotation(vectors[:, -1])

    @override
    def __mul__(self, other: Any) -> Rotation:
        """Return the composition that applies the ``other`` rotation first."""
        if not isinstance(other, Rotation):
            return NotImplemented
        return Rotation(_product(self.quat, other.quat))

    def __getitem__(self, index: Any) -> Rotation:  # type: ignore[override]
        """Return the rotations at ``index``; TypeError for a single rotation."""
        if self.single:
            raise TypeError("a single rotation cannot be indexed")
        return Rotation(anp.getitem(self.quat, index))

    @override
    def __len__(self) -> int:
        """Return the number of rotations; TypeError for a single rotation."""
        if self.single:
            raise TypeError("a single rotation has no length")
        return self.quat.shape[0]


def _axes_of(seq: str) -> tuple[list[int], bool]:
    """Return the numbers of the axes that ``seq`` names, and whether it is intrinsic.

    "xz" gives ([0, 2], False) and "XZ" gives ([0, 2], True). Other letters, more than
    three, or an axis twice in a row raise ArgumentError.
    """
    if not 1 <= len(seq) <= 3 or not (set(seq) <= set("xyz") or set(seq) <= set("XYZ")):
        raise ArgumentError(
            f"a sequence names one to three axes, as 'xyz' or as 'XYZ', not {seq!r}",
            user_location(),
        )
    axes = ["xyz".index(letter) for letter in seq.lower()]
    if any(a == b for a, b in itertools.pairwise(axes)):
        raise ArgumentError(
            f"a sequence names no axis twice in a row, as {seq!r} does",
            user_location(),
        )
    return axes, seq.isupper()


class Slerp(NamedTuple):
    """Spherical linear interpolation between rotations at times.

    ``times`` are (n,), and ``turns`` (n - 1, 3) are the rotation vectors from each
    rotation to the next. Create it with ``Slerp.init``.
    """

    times: Array
    rotations: Rotation
    turns: Array

    @classmethod
    def init(cls, times: ArrayLike, rotations: Rotation) -> Slerp:
        """Return an interpolation of ``rotations`` (n) at ascending ``times`` (n,).

        Other shapes, or fewer than two times, raise ShapeError.
        """
        at = anp.asarray(times)
        if at.ndim != 1 or at.shape[0] != rotations.quat.shape[0] or len(at) < 2:
            raise ShapeError(
                f"Slerp takes two or more times and as many rotations, not {at.shape} "
                f"and {rotations.quat.shape}",
                user_location(),
            )
        before, after = (Rotation(q) for q in (rotations.quat[:-1], rotations.quat[1:]))
        return cls(at, rotations, (before.inv() * after).as_rotvec())

    def __call__(self, times: ArrayLike) -> Rotation:
        """Return the rotations at ``times`` (any shape).

        A time between times[k] and times[k + 1] gives rotations[k] times a part of turn
        k. Times outside use the first or the last turn.
        """
        dtype = ops.common_dtype("Slerp", (self.times, times))
        at = ops.as_array(ops.convert(times, dtype))
        count = self.times.shape[0]
        place = anp.clip(anp.searchsorted(self.times, at, "right") - 1, 0, count - 2)
        start = anp.take(self.times, place, mode="clip")
        end = anp.take(self.times, place + 1, mode="clip")
        share = ((at - start) / (end - start))[..., None]
        begin = Rotation(anp.take(self.rotations.quat, place, 0, mode="clip"))
        turn = anp.take(self.turns, place, 0, mode="clip")
        return begin * Rotation.from_rotvec(share * turn)


__all__ = ["Rotation", "Slerp"]

_documentation.attach(__name__)
