"""Every row of the table as a GPU computes it, by the emulator: values of its samples.

All samples of a row, of all dtypes, are one Program, whose kernels are compiled as far
as that needs no card.
"""

import numpy as np
import pytest

from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.lowering.cuda.lower import lower
from arrayfn.primitives.calls import evaluate
from tests.backends.test_cuda_table import (
    BY_NAME,
    VALUES,
    differences,
    together,
    values_of,
)


@pytest.mark.parametrize("name", VALUES)
def test_emulated_values_are_those_of_the_reference(name: str) -> None:
    program, inputs, labels = together(name, values_of(VALUES[name]))
    wanted = [np.asarray(x) for x in evaluate(program, inputs)]
    results = run_plan(lower(program, check=True), inputs)
    assert not differences(BY_NAME[name], labels, results, wanted)
