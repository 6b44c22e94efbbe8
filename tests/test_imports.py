"""What ``import arrayfn`` loads, and that the rest comes when it is first used.

Each test runs a fresh process: this one has loaded everything.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import arrayfn as af

MOST_MODULES = 125
"""Of arrayfn itself. There are 115: raise it for what every process needs, alone."""


def printed(code: str) -> str:
    """What a fresh process prints that runs ``code``, and proves no plans."""
    command = [sys.executable, "-c", code]
    unset = {name: os.environ[name] for name in os.environ if name != "ARRAYFN_VERIFY"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=unset
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_import_leaves_out_what_few_processes_use() -> None:
    late = "numba llvmlite scipy json hashlib fractions secrets html concurrent.futures"
    late += " arrayfn.tools arrayfn.distributed arrayfn.backends.cuda.driver"
    late += " arrayfn.compilation.compiling arrayfn.compilation.bundles"
    late += " arrayfn.lowering.plan arrayfn.lowering.lower arrayfn.primitives.table"
    late += "".join(f" arrayfn.{name}" for name in af._NAMESPACES)
    loaded = printed(
        f"import sys, arrayfn; print({{*{late.split()}}} & sys.modules.keys())"
    )
    assert loaded == "set()\n"


def test_an_import_loads_no_more_modules_than_now() -> None:
    count = printed(
        "import sys, arrayfn; print(sum(m.startswith('arrayfn') for m in sys.modules))"
    )
    assert int(count) <= MOST_MODULES


def test_a_compiled_function_on_a_cpu_loads_nothing_of_gpus_and_meshes() -> None:
    loaded = printed(
        "import sys, arrayfn as af, numpy as np\n"
        "af.jit(lambda x: np.exp(x) + 1.0)(np.ones(3))\n"
        "print([m for m in sys.modules if m.startswith(("
        "'arrayfn.lowering.cuda', 'arrayfn.backends.cuda.d', 'arrayfn.distributed', "
        "'arrayfn.lax', 'arrayfn.nn', 'arrayfn.random'))])"
    )
    assert loaded == "[]\n"


def late_names() -> dict[str, str]:
    """The names that type checkers alone import in ``arrayfn``, and their modules."""
    tree = ast.parse(Path(af.__file__).read_text(encoding="utf-8"))
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {
        name.asname or name.name: f"{node.module}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }


def test_type_checkers_and_processes_find_late_names_in_the_same_modules() -> None:
    namespaces = dict.fromkeys(af._NAMESPACES, "arrayfn")
    names = {name: f"arrayfn.{module}" for name, module in af._MODULES.items()}
    assert late_names() == namespaces | names


@pytest.mark.parametrize("how", ["getattr(af, name)", "vars(af)[name]"])
def test_late_names_are_public_names(how: str) -> None:
    late = sorted({*af._NAMESPACES, *af._MODULES})
    lines = (
        f"import arrayfn as af\nassert {{*{late}}} <= {{*dir(af)}} & {{*af.__all__}}\n"
        f"for name in {late}:\n    first = getattr(af, name)\n"
        f"    assert {how} is first, name\n"
    )
    assert printed(lines) == ""


def test_facts_are_added_to_late_names() -> None:
    text = printed("import arrayfn as af; print(af.set_num_threads.__doc__)")
    assert text.count(">>> ") > 0
    assert text == f"{af.set_num_threads.__doc__}\n"


def test_an_import_while_a_function_is_traced_leaves_its_program_alone() -> None:
    program = printed(
        "import pkgutil, sys, importlib, numpy as np, arrayfn as af\n"
        "def f(x):\n"
        "    for module in pkgutil.walk_packages(af.__path__, 'arrayfn.'):\n"
        "        try:\n"
        "            module.name.endswith('__main__') or "
        "importlib.import_module(module.name)\n"
        "        except ImportError:\n"
        "            pass  # of another package, which is not installed\n"
        "    return -x\n"
        "print(len(af.make_program(f)(np.ones(2)).equations), 'arrayfn.nn' in "
        "sys.modules)\n"
    )
    assert program == "1 True\n"


def test_a_key_is_a_pytree_where_random_was_not_imported() -> None:
    leaves = printed(
        "import sys, numpy as np, arrayfn as af\n"
        "from arrayfn.tracing import Key\n"
        "leaves = af.tree.leaves(Key(np.zeros(2, np.uint32)))\n"
        "print(leaves, 'arrayfn.random' in sys.modules)"
    )
    assert leaves == "[array([0, 0], dtype=uint32)] False\n"


def test_the_backend_of_meshes_is_found_before_there_are_arrays_over_one() -> None:
    found = printed(
        "import sys, arrayfn as af\n"
        "print('arrayfn.distributed' in sys.modules, af.backend_info('mesh').kind)"
    )
    assert found == "False implied\n"


NODES = (
    "arrayfn.optim.adam(0.1).init({'w': np.ones(2)})",
    "arrayfn.sparse.CSR(np.eye(2))",
)


@pytest.mark.parametrize("value", NODES)
def test_saved_structures_are_read_where_their_namespace_was_not_imported(
    value: str,
) -> None:
    document = printed(
        "import json, numpy as np, arrayfn, arrayfn.optim\n"
        "from arrayfn.compilation import structures\n"
        f"structure = arrayfn.tree.structure({value})\n"
        "print(json.dumps(structures.described(structure)))"
    )
    leaves = printed(
        "import json, sys, arrayfn\n"
        "from arrayfn.compilation import structures\n"
        f"print(len(structures.read(json.loads({document!r}))[0]))"
    )
    assert int(leaves) == 3


def test_loops_outside_jit_are_compiled_where_nothing_was_compiled_before() -> None:
    total = printed(
        "import numpy as np, arrayfn as af\n"
        "step = lambda c, _: (c + 1.0, None)\n"
        "print(af.lax.scan(step, np.float64(0), length=5000)[0])"
    )
    assert total == "5000.0\n"


def test_the_first_product_of_a_process_with_a_sparse_matrix_has_its_kernel() -> None:
    steps = printed(
        "import numpy as np, arrayfn as af\n"
        "x = np.where(np.arange(10000).reshape(100, 100) % 3 == 0, 1.0, 0.0)\n"
        "m = af.sparse.CSR(x)\n"
        "(kernel,) = af.jit(lambda m, v: m @ v).lower(m, np.ones(100)).kernels\n"
        "print(kernel.provider)"
    )
    assert steps.startswith("sparse_csr_")


def test_rules_find_primitives_that_nothing_has_imported() -> None:
    slope = printed(
        "import numpy as np, arrayfn as af\n"
        "print(af.grad(lambda w: (w @ w).sum())(np.ones((2, 2))).tolist())"
    )
    assert slope == "[[4.0, 4.0], [4.0, 4.0]]\n"


def test_examples_of_a_module_run_alone_although_a_function_has_its_name() -> None:
    root = Path(af.__file__).parent.parent
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [*command, "arrayfn/random/bits.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )
    assert "3 passed" in done.stdout
