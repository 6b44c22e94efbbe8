"""masks_of_results: what a derivative asks of x is asked of relu(x)."""

from __future__ import annotations

from arrayfn.passes.masks import masks_of_results
from arrayfn.transforms.dce import dce
from tests.passes.texts import body, check_same_bits, parse

RECTIFIED = """
    program f(x: f32[9], y: f32[9]) -> (f32[9], f32[9]) {
      a: bool[9] = le(x, 0.0:f32)
      b: f32[9] = select(a, 0.0:f32, x)
      c: f32[9] = select(a, 0.0:f32, y)
      return b, c
    }
"""


def test_a_mask_that_is_used_again_is_the_result_s() -> None:
    before = parse(RECTIFIED)
    after = dce(masks_of_results(before))
    after.check()
    check_same_bits(before, after)
    assert body(after) == [
        "a: bool[9] = le(x, 0.0:f32)",
        "b: f32[9] = select(a, 0.0:f32, x)",
        "c: bool[9] = le(b, 0.0:f32)",
        "d: f32[9] = select(c, 0.0:f32, y)",
        "return b, d",
    ]


def test_other_choices_stay() -> None:
    changes = (
        ("0.0:f32, x", "1.0:f32, x"),
        ("le(x, 0.0", "lt(x, 0.0"),
        ("le(x, 0.0", "le(y, 0.0"),  # a mask of another value than the one chosen
        ("le(x, 0.0:f32", "le(x, 1.0:f32"),
    )
    for change in changes:
        before = parse(RECTIFIED.replace(*change))
        assert body(dce(masks_of_results(before))) == body(before)


def test_a_mask_without_a_later_use_gives_no_equation() -> None:
    before = parse("""
        program f(x: f32[9]) -> (f32[9]) {
          a: bool[9] = le(x, 0.0:f32)
          b: f32[9] = select(a, 0.0:f32, x)
          return b
        }
    """)
    assert body(masks_of_results(before)) == body(before)
