"""Rotations: SciPy's, under jit and differentiated."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.spatial.transform as theirs

import arrayfn as af
from arrayfn.errors import ArgumentError, ShapeError
from arrayfn.scipy.spatial.transform import Rotation, Slerp

RNG = np.random.default_rng(0)
Q = RNG.standard_normal((7, 4))
VECTORS = RNG.standard_normal((7, 3))
EXPECTED = theirs.Rotation.from_quat(Q)
OURS = Rotation.from_quat(Q)


def same(ours, expected):
    """Equal up to the sign of the quaternion."""
    np.testing.assert_allclose(ours.as_matrix(), expected.as_matrix(), atol=1e-12)


def test_conversions_from_a_quaternion():
    np.testing.assert_allclose(OURS.as_matrix(), EXPECTED.as_matrix(), atol=1e-14)
    np.testing.assert_allclose(OURS.as_rotvec(), EXPECTED.as_rotvec(), atol=1e-14)
    np.testing.assert_allclose(OURS.as_mrp(), EXPECTED.as_mrp(), atol=1e-14)
    expected = EXPECTED.as_quat(canonical=True)
    np.testing.assert_allclose(OURS.as_quat(canonical=True), expected, atol=1e-14)
    np.testing.assert_allclose(OURS.magnitude(), EXPECTED.magnitude(), atol=1e-14)


def test_short_integers_are_computed_in_float64():
    quaternion, angles = np.array([1, -2, 3, 5], np.int8), np.array([37, -90], np.int8)
    for name, arguments in (
        ("from_quat", (quaternion,)),
        ("from_euler", ("xz", angles, True)),
    ):
        ours = getattr(Rotation, name)(*arguments)
        same(ours, getattr(theirs.Rotation, name)(*arguments))


def test_conversions_to_a_quaternion():
    same(Rotation.from_matrix(EXPECTED.as_matrix()), EXPECTED)
    same(Rotation.from_rotvec(EXPECTED.as_rotvec()), EXPECTED)
    same(Rotation.from_mrp(EXPECTED.as_mrp()), EXPECTED)
    tiny = np.array([[0.0, 0.0, 0.0], [1e-5, -2e-5, 1e-6]])
    same(Rotation.from_rotvec(tiny), theirs.Rotation.from_rotvec(tiny))
    np.testing.assert_allclose(Rotation.from_rotvec(tiny).as_rotvec(), tiny, rtol=1e-12)
    turned = np.diag([1.0, -1.0, -1.0])
    same(Rotation.from_matrix(turned), theirs.Rotation.from_matrix(turned))


SEQUENCES = ["xyz", "zyx", "XYZ", "ZYX", "zxz", "ZXZ", "yzx", "YXY", "XZY"]


@pytest.mark.parametrize("seq", SEQUENCES)
def test_euler_angles(seq):
    expected = EXPECTED.as_euler(seq)
    np.testing.assert_allclose(OURS.as_euler(seq), expected, atol=1e-12)
    same(Rotation.from_euler(seq, expected), EXPECTED)
    degrees = OURS.as_euler(seq, degrees=True)
    same(Rotation.from_euler(seq, degrees, degrees=True), EXPECTED)


@pytest.mark.parametrize("seq", SEQUENCES)
@pytest.mark.parametrize("middle", [0.0, np.pi / 2, -np.pi / 2, np.pi])
def test_euler_angles_where_two_axes_meet(seq, middle):
    angles = np.array([0.3, middle, -0.8])
    expected = theirs.Rotation.from_euler(seq, angles)
    ours = Rotation.from_euler(seq, angles)
    same(Rotation.from_euler(seq, ours.as_euler(seq)), expected)


def test_one_angle():
    same(Rotation.from_euler("y", 0.4), theirs.Rotation.from_euler("y", 0.4))
    angles = np.array([0.1, 0.2])
    same(
        Rotation.from_euler("Z", angles),
        theirs.Rotation.from_euler("Z", angles[:, None]),
    )


def test_vectors_are_turned():
    np.testing.assert_allclose(OURS.apply(VECTORS), EXPECTED.apply(VECTORS), atol=1e-14)
    back = OURS.apply(VECTORS, inverse=True)
    np.testing.assert_allclose(back, EXPECTED.apply(VECTORS, inverse=True), atol=1e-14)
    compiled = af.jit(lambda r, v: (r * r.inv() * r).apply(v))(OURS, VECTORS)
    np.testing.assert_allclose(compiled, EXPECTED.apply(VECTORS), atol=1e-13)


def test_products_means_and_parts():
    same(OURS * OURS[::-1], EXPECTED * EXPECTED[::-1])
    same(OURS.inv(), EXPECTED.inv())
    same(OURS.mean(), EXPECTED.mean())
    weights = np.arange(1.0, 8.0)
    same(OURS.mean(weights), EXPECTED.mean(weights))
    assert len(OURS[:3]) == 3
    assert OURS[0].single
    same(Rotation.concatenate([OURS, OURS[0]])[7], EXPECTED[0])
    same(Rotation.identity(), theirs.Rotation.identity())


def test_the_slope_of_a_turn():
    def height(angle):
        return Rotation.from_rotvec(angle).apply(np.array([1.0, 0.0, 0.0]))[2]

    slope = af.grad(height)(np.zeros(3))
    np.testing.assert_allclose(slope, [0.0, -1.0, 0.0], atol=1e-14)


def test_rotations_between_rotations():
    times = np.array([0.0, 1.0, 1.5, 3.0, 4.0, 6.0, 7.0])
    at = np.array([0.0, 0.3, 1.0, 2.2, 6.9])
    expected = theirs.Slerp(times, EXPECTED)(at)
    same(Slerp.init(times, OURS)(at), expected)
    same(af.jit(lambda s, t: s(t))(Slerp.init(times, OURS), at), expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Rotation.from_quat(VECTORS), ShapeError, "takes 4 numbers"),
        (lambda: Rotation.from_matrix(VECTORS), ShapeError, r"\(\.\.\., 3, 3\)"),
        (lambda: Rotation.from_euler("xx", [0, 0]), ArgumentError, "twice in a row"),
        (lambda: Rotation.from_euler("xY", [0, 0]), ArgumentError, "'xyz' or as"),
        (lambda: Rotation.from_euler("xyz", 0.0), ShapeError, "takes 3 angles"),
        (lambda: OURS.as_euler("x"), ArgumentError, "three axes"),
        (lambda: Slerp.init(np.arange(3.0), OURS), ShapeError, "as many rotations"),
    ],
)
def test_bad_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
