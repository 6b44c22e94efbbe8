"""Wrapped functions in other processes: by pickle, cloudpickle, joblib, pools."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from tests.processes import python_path

X = np.linspace(-1.0, 2.0, 12).reshape(3, 4)


def plain(x: Any, power: int = 2) -> Any:
    return anp.tanh(x) ** power


def inverse(x: Any) -> Any:
    return 1 / x


@af.jit
def decorated(x: Any) -> Any:
    return anp.sin(x) * 2


twice = af.jit(plain, static_argnames="power", donate_argnums=(), device="cpu")
gradient = af.jit(af.grad(lambda x: anp.sum(anp.cos(x))))


@af.operator
def halved(x: Any, by: float = 2.0) -> Any:
    return x / by


@halved.kernel("cpu")
def halved_by_numpy(x: Any, out: Any, by: float) -> None:
    np.divide(x, by, out=out)


@af.custom_jvp
def clipped(x: Any) -> Any:
    return anp.clip(x, 0, 1)


@clipped.defjvp
def clipped_jvp(primals: Any, tangents: Any) -> Any:
    return clipped(*primals), tangents[0] * 3


@af.custom_vjp
def passed(x: Any) -> Any:
    return x * 1.0


passed.defvjp(lambda x: (x, None), lambda _, ct: (ct * 7,))


class Model:
    @af.jit
    def double(self: Any) -> Any:
        return self * 2


def with_closure(scale: float) -> Any:
    return af.jit(lambda x: x * scale + decorated(x))


@pytest.mark.parametrize("function", [decorated, twice])
@pytest.mark.parametrize("is_called", [False, True])
@pytest.mark.parametrize("protocol", [2, 5])
def test_a_jitted_function_of_a_module_pickles(function, is_called, protocol):
    wanted = function(X)
    if is_called:
        function(X)
    again = pickle.loads(pickle.dumps(function, protocol))
    np.testing.assert_array_equal(again(X), wanted)
    np.testing.assert_array_equal(again(X[0]), function(X[0]))


def test_options_are_kept():
    again = pickle.loads(pickle.dumps(twice))
    np.testing.assert_array_equal(again(X, power=3), np.asarray(twice(X, power=3)))
    checked = pickle.loads(pickle.dumps(af.jit(inverse, checks="division")))
    with pytest.raises(ZeroDivisionError):
        checked(np.zeros(2))


def test_what_a_decorator_replaced_is_found_by_its_name():
    for wrapped in (decorated, halved, clipped, passed, Model.double):
        assert pickle.loads(pickle.dumps(wrapped)) is wrapped
        assert copy.deepcopy(wrapped) is wrapped


@pytest.mark.parametrize("is_called", [False, True])
def test_cloudpickle_takes_closures_and_wrapped_functions(is_called):
    functions = [with_closure(3.0), gradient, af.vmap(decorated), af.grad(anp.sum)]
    functions.append(af.jit(af.vmap(lambda row: row - anp.mean(row))))
    for function in functions:
        wanted = function(X)
        if is_called:
            function(X)
        again = pickle.loads(cloudpickle.dumps(function))
        np.testing.assert_array_equal(again(X), wanted)


def test_operators_and_rules_pickle_by_value():
    # As notebooks have them: their module cannot be imported elsewhere.
    local = af.operator(lambda x: x + 5, name="shifted_by_five")
    local.kernel("cpu")(lambda x, out: np.add(x, 5, out=out))
    again = pickle.loads(cloudpickle.dumps(local))
    assert [k.backend for k in again.kernels] == ["cpu"]
    np.testing.assert_array_equal(af.jit(again)(X), X + 5)

    rule = af.custom_jvp(lambda x: x * x)
    rule.defjvp(lambda p, t: (p[0] * p[0], 10.0 * t[0]))
    again = pickle.loads(cloudpickle.dumps(rule))
    assert af.grad(again)(3.0) == 10.0
    rule = af.custom_vjp(lambda x: x * x)
    rule.defvjp(lambda x: (x * x, x), lambda x, ct: (4.0 * ct * x,))
    again = pickle.loads(cloudpickle.dumps(rule))
    assert af.grad(again)(3.0) == 12.0


def test_keys_shapes_and_types_pickle():
    key = pickle.loads(pickle.dumps(af.random.key(3)))
    np.testing.assert_array_equal(
        af.random.normal(key, (3,)), af.random.normal(af.random.key(3), (3,))
    )
    shape = af.ShapeDtypeStruct((2, 3), np.float32)
    assert pickle.loads(pickle.dumps(shape)) == shape


def test_what_cannot_be_pickled_is_pythons_own_error():
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(af.jit(lambda x: x))
    lock = multiprocessing.Lock()
    with pytest.raises(RuntimeError, match="Lock objects should only be shared"):
        cloudpickle.dumps(af.jit(lambda x: (lock, x)[1]))


def test_what_is_compiled_stays_in_its_process():
    lowered = decorated.lower(X)
    for stage in (lowered, lowered.compile()):
        with pytest.raises(TypeError, match=r"pickle the jitted function, or .*save"):
            pickle.dumps(stage)


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_pool_of_processes(method):
    decorated(X)
    context = multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        for function in (decorated, twice):
            (result,) = pool.map(function, [X])
            np.testing.assert_array_equal(result, function(X))


SCRIPT = """
import sys
import numpy as np
import arrayfn as af, arrayfn.numpy as anp

@af.jit
def f(x):
    return anp.sum(x * scale)

@af.operator
def plus_one(x):
    return x + 1

g = af.jit(lambda x: f(plus_one(x)) + 1.0)
scale = 3.0

if __name__ == "__main__":
    x = np.ones(4)
    f(x), g(x)
    if sys.argv[1] == "joblib":
        joblib = __import__("joblib")
        run = joblib.Parallel(n_jobs=2)
        print(run(joblib.delayed(h)(x) for h in (f, g, plus_one)))
    else:
        import multiprocessing
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(f, [x]))
"""


@pytest.mark.parametrize("how", ["joblib", "spawn"])
def test_functions_of_a_script(how, tmp_path: Path):
    if how == "joblib":
        pytest.importorskip("joblib")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py", how],
        cwd=tmp_path,
        env={"PYTHONPATH": python_path(), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    wanted = {
        "joblib": "[array(12.), array(25.), array([2., 2., 2., 2.])]",
        "spawn": "[array(12.)]",
    }
    assert done.stdout.strip() == wanted[how]
