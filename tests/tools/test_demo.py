"""The demonstration, in small: its NumPy step, and training to better than chance."""

import numpy as np
import pytest

import arrayfn as af
from arrayfn.tools import cli, demo


def test_compiled_step_agrees_with_the_step_written_by_hand():
    rng = np.random.default_rng(3)
    params = demo.initial(rng)
    x = rng.random((16, 64), dtype=np.float32)
    labels = rng.integers(0, 10, 16, dtype=np.int32)
    step = af.jit(demo.sgd(af.value_and_grad(demo.loss)))

    value, moved = step(params, x, labels, 0.1)
    expected, expected_moved = demo.numpy_step(params, x, labels, 0.1)

    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for ours, by_hand in zip(
        af.tree.leaves(moved), af.tree.leaves(expected_moved), strict=True
    ):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, by_hand, rtol=1e-4, atol=1e-6)


def test_demo_reaches_its_goal_and_writes_the_curve(tmp_path, capsys):
    curve = tmp_path / "loss.png"

    status = cli.main(["demo", "--plot", str(curve)])

    printed = capsys.readouterr().out
    assert status == 0, printed
    assert curve.read_bytes().startswith(b"\x89PNG")
    assert "program step(" in printed
    assert "def " in printed


def test_demo_on_a_missing_device_says_what_is_missing(capsys):
    status = cli.main(["demo", "--device", "abacus"])

    assert status == 2
    assert "abacus" in capsys.readouterr().err


def test_shortened_text_says_how_much_is_left_out():
    text = "\n".join(f"line {i}" for i in range(10))
    assert demo.shortened(text, 4).splitlines() == [
        "line 0",
        "line 1",
        "  ... 7 more lines",
        "line 9",
    ]
    assert demo.shortened(text, 10) == text


def test_command_line_names_its_commands(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    assert "demo" in capsys.readouterr().out
